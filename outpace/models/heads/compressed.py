"""Compressed matrices of a draft head for its compiled forwards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from transformers import PreTrainedModel

from outpace.models.heads.draft_head import DraftHead
from outpace.models.openvino.compressed_weights import CompressedWeights, compress


def compress_head(
    head: DraftHead, format: str, environment: Mapping[str, str] = os.environ
) -> CompressedWeights:
    """Compress the head's own matrices in its graph, and set them to the compressed values."""
    return compress(head, format, environment, besides=(*head.from_target, *head.before_forward))


def weights_of_head(
    head: DraftHead,
    format: str | None,  # of the head's own matrices; None: they are not compressed
    target: PreTrainedModel,
    of_target: CompressedWeights | None,
    environment: Mapping[str, str] = os.environ,
) -> CompressedWeights | None:
    """The compressed matrices for a head's graph: its own, and those that it shares with a target that has
    compressed matrices. The target is not changed. Errors as in `compress`."""
    own = None if format is None else compress_head(head, format, environment)
    if of_target is None:
        return own
    names = {id(parameter): name for name, parameter in target.named_parameters()}
    shared = {
        name: of_target.nodes[names[id(parameter)]]
        # with duplicates: a parameter that embedding and LM head share has two names
        for name, parameter in head.named_parameters(remove_duplicate=False)
        if names.get(id(parameter)) in of_target.nodes
    }
    return replace(of_target, nodes=shared) if own is None else replace(own, nodes={**own.nodes, **shared})
