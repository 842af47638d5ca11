"""CORAL's heads in files: the configuration of a Llama model of their layers with that of the router, and
beside the weights `token_order`, all token ids from frequent to rare. Folders have neither the embedding nor
the LM head: both are the target's."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.coral.head import CoralHead
from outpace.models.heads.formats.decoder_layer import read_layer, write_layer
from outpace.models.heads.formats.files import WEIGHTS, Config, HeadFileError, Tensors
from outpace.models.heads.formats.own import own_layout
from outpace.models.heads.kinds import Layout

ORDER, GROUPS, ACTIVE = "token_order", "num_groups", "num_active_groups"


def _made(config: Config, target: TargetWithLayers) -> CoralHead:
    layers = read_layer(config, target.vocab, target, max_layers=None)
    order = torch.arange(target.vocab)  # until the file's is known
    groups = int(config.get(GROUPS, 0))
    try:
        return CoralHead(
            layers, target.embed, target.head, order, num_groups=groups, num_active=int(config.get(ACTIVE, 0))
        )
    except ValueError as error:
        raise HeadFileError(str(error)) from error


def _sizes(head: CoralHead, target: TargetWithLayers) -> dict[str, Any]:
    assert isinstance(head.config, LlamaConfig)
    groups = {} if head.router is None else {GROUPS: len(head.groups), ACTIVE: head.num_active}
    return write_layer(head.config, target.vocab) | groups


def _read(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[CoralHead, Tensors]:
    order = tensors.pop(ORDER, None)
    if order is None or order.sort().values.tolist() != list(range(target.vocab)):
        raise HeadFileError(
            f"{WEIGHTS} lacks {ORDER}, each of the target's {target.vocab} tokens once: restore that file"
        )
    head = _made(config, target)
    head.token_order = order
    return head, tensors


_own = own_layout("coral", _sizes, _made)


def _write(head: CoralHead, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    config, tensors = _own.write(head, target, name)
    return config, {**tensors, ORDER: head.token_order}


LAYOUT = Layout(_own.recognises, _read, _write)
