"""Ways to read the files of a draft head: as configured, and with each error that loads without a message.

Which of them is right shows when the head drafts: see `self_check`.

Letters: K tokens of the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from outpace.core.contracts import TargetWithLayers
from outpace.models.eager.private_copy import private_copy
from outpace.models.heads.dflash.head import DFlashHead
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.dspark.head import DSparkHead
from outpace.models.heads.eagle.head import EagleHead
from outpace.models.heads.eagle3.head import Eagle3Head, norms_of_taps


@dataclass(frozen=True)
class Reading:
    """One way to read a head's files."""

    name: str
    cause: str  # end of the finding's message: the difference, a colon and the fix
    head: DraftHead
    layers: tuple[int, ...]  # of the target, whose outputs make the features
    second: bool = False  # it changes the second draft token only
    causal: bool = False  # the tokens of a block attend to those before them alone


def readings(target: TargetWithLayers, head: DraftHead) -> Iterator[Reading]:
    """The head as configured, then each other way to read its files."""
    configured = Reading("configured", "", head, tuple(head.taps))
    yield configured
    if isinstance(head, Eagle3Head):
        yield from _readings_of_eagle3(target, head, configured)
    if isinstance(head, DFlashHead):
        yield from _readings_of_blocks(target, head, configured)
    if isinstance(head, EagleHead):
        weight = head.fc.weight
        swapped = _with_fc(head, torch.cat(weight.chunk(2, -1)[::-1], -1))
        yield replace(
            configured,
            name="halves of fc swapped",
            cause="with the halves of fc.weight swapped, as where the hidden state comes before the "
            "embedding: write the columns for the embedding first",
            head=swapped,
        )


def _readings_of_eagle3(target: TargetWithLayers, head: Eagle3Head, configured: Reading) -> Iterator[Reading]:
    yield from _readings_of_layers(target, configured, "eagle_aux_hidden_state_layer_ids")
    layer: Any = head.layers[0]
    flipped = not layer.norm_before_residual
    other: Any = _changed(head)
    other.layers[0].norm_before_residual = flipped
    yield replace(
        configured,
        name=f"norm_before_residual {str(flipped).lower()}",
        cause="with the other residual, as where the key is absent and its default differs: set "
        f"norm_before_residual to {str(flipped).lower()} in its config.json",
        head=other,
    )
    if not head.drafts_in_masks:
        normed = head.state_layer != -1
        yield replace(
            configured,
            name=f"norm_output {str(normed).lower()}",
            cause=f"when its output is fed back {'after' if normed else 'before'} the norm, as where the key "
            f"is absent and its default differs: set norm_output to {str(normed).lower()} in its config.json",
            head=_changed(head, state_layer=-1 if normed else 0),
            second=True,
        )
    yield from _readings_of_draft_ids(head, configured)
    yield from _readings_of_input_norms(head, configured)


def _readings_of_blocks(target: TargetWithLayers, head: DFlashHead, configured: Reading) -> Iterator[Reading]:
    yield from _readings_of_layers(target, configured, "target_layer_ids or aux_hidden_state_layer_ids")
    yield from _readings_of_draft_ids(head, configured)
    yield replace(
        configured,
        name="causal blocks",
        cause="with causal blocks, whose tokens see those before them alone: give a head whose blocks are "
        "read two ways, as outpace does not draft with others",
        causal=True,
    )
    at_root = not head.drafts_at_root
    place = "the block's first token" if at_root else "the block's first mask"
    keys = f"set sample_from_anchor to {str(at_root).lower()} in its config.json"
    if isinstance(head, DSparkHead):
        keys += f", or dspark_bonus_anchor to {str(not at_root).lower()}"
    yield replace(
        configured,
        name=f"drafts at the {'root' if at_root else 'masks'}",
        cause=f"from the logits at {place}, as in another convention: {keys}",
        head=_changed(head, drafts_at_root=at_root),
    )
    yield replace(
        configured,
        name="norm and hidden_norm swapped",
        cause="with norm.weight and hidden_norm.weight swapped: exchange the names of these tensors",
        head=_changed(head, norm=head.hidden_norm, hidden_norm=head.norm),
    )
    swapped: Any = _changed(head)
    for layer in swapped.layers:
        before, after = layer.input_layernorm, layer.post_attention_layernorm
        layer.input_layernorm, layer.post_attention_layernorm = after, before
    yield replace(
        configured,
        name="norms of layers swapped",
        cause="with the two norms of each layer swapped: exchange the names of input_layernorm.weight and "
        "post_attention_layernorm.weight",
        head=swapped,
    )
    if isinstance(head, DSparkHead) and head.draft_ids is None:
        other: Any = _changed(head)
        markov = other.markov_head
        markov.markov_w1.weight, markov.markov_w2.weight = markov.markov_w2.weight, markov.markov_w1.weight
        yield replace(
            configured,
            name="markov_w1 and markov_w2 swapped",
            cause="with the matrices of the Markov head swapped: exchange the names of markov_w1.weight and "
            "markov_w2.weight",
            head=other,
        )


def _readings_of_layers(target: TargetWithLayers, configured: Reading, key: str) -> Iterator[Reading]:
    taps = configured.layers
    for shift, direction, verb in ((1, "later", "raise"), (-1, "earlier", "lower")):
        moved = tuple(layer + shift for layer in taps)
        if 0 <= moved[0] and moved[-1] < target.num_layers:
            yield replace(
                configured,
                name=f"layers {shift:+d}",
                cause=f"from the outputs of one layer {direction}, as where its numbers were taken over from "
                f"another convention: {verb} each number in {key} of its config.json by 1",
                layers=moved,
            )
    if len(taps) > 1:
        yield replace(
            configured,
            name="layers reversed",
            cause="with the outputs of its layers in reversed order: reverse the blocks of columns of "
            "fc.weight",
            layers=taps[::-1],
        )


def _readings_of_draft_ids(head: DraftHead, configured: Reading) -> Iterator[Reading]:
    if (ids := head.draft_ids) is not None:
        offsets = ids - torch.arange(len(ids), device=ids.device)
        if len(offsets.unique()) == len(ids):
            yield replace(
                configured,
                name="d2t absolute",
                cause="with d2t as token ids, not as offsets: subtract its index from each entry of d2t",
                head=_changed(head, draft_ids=offsets),
            )


def _readings_of_input_norms(head: Eagle3Head, configured: Reading) -> Iterator[Reading]:
    if head.input_norm is not None or head.fc_norm is not None:
        yield replace(
            configured,
            name="no norm before fc",
            cause="without the norm before fc: set norm_before_fc and fc_norm to false in its config.json "
            "and remove the tensors of the norm",
            head=_changed(head, input_norm=None, fc_norm=None),
        )
        return
    assert isinstance(head.config, LlamaConfig)
    size, count, eps = head.config.hidden_size, len(head.taps), head.config.rms_norm_eps
    weight = next(head.fc.parameters())
    whole = LlamaRMSNorm(count * size, eps=eps).to(weight)
    norm_per_layer = norms_of_taps(head.config, count).to(weight)
    for option, tensor, norms in (
        ("norm_before_fc", "input_norm.weight", {"input_norm": whole}),
        ("fc_norm", "fc_norm.0.weight and so on", {"fc_norm": norm_per_layer}),
    ):
        yield replace(
            configured,
            name=option,
            cause=f"with a norm before fc: set {option} to true in its config.json and restore {tensor}",
            head=_changed(head, **norms),
        )


def _changed(head: DraftHead, **attributes: Any) -> DraftHead:
    """A copy of a head with shared weights and these attributes changed."""
    made: Any = private_copy(head, {}, "sdpa")
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def _with_fc(head: DraftHead, weight: Tensor) -> DraftHead:
    made: Any = _changed(head)
    made.fc.weight = nn.Parameter(weight.detach())
    return made
