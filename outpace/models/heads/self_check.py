"""Finds errors in the files of a draft head that load without an error and only lower its acceptance: layer
numbers off by one, swapped halves of a matrix, a missing norm.

The check reads a text once with the target and measures how often the head's most probable token is the
target's (top-1 agreement), for the head as configured and for each other way to read its files, a "reading".

Letters: T tokens of the text, N drafts compared, D hidden size of the target, K tokens of the draft
vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from outpace.core.contracts import Prompt, TargetWithLayers, Want
from outpace.core.tree import Forest, TokenTree
from outpace.models.eager.private_copy import private_copy
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle.head import EagleHead
from outpace.models.heads.eagle3.head import Eagle3Head, norms_of_taps
from outpace.models.heads.head_model import HeadModel

# Another reading is better than the configured one if it agrees with the target at more positions, by 4
# standard deviations of McNemar's test and by 5 percentage points: neighbouring positions are not
# independent, and every change moves acceptance a little.
DEVIATIONS, MARGIN = 4.0, 0.05
SHORTEST = 16  # tokens of a text


@dataclass(frozen=True)
class Finding:
    """A reading of the head's files with which the head agrees with the target more often."""

    reading: str  # name of the reading
    message: str  # the error and its fix, one sentence
    configured: float  # top-1 agreement as configured
    agreement: float  # top-1 agreement with this reading


@dataclass(frozen=True)
class SelfCheck:
    """A head's top-1 agreement with the target on a text, and the readings that are clearly better: several
    if the text does not decide between them."""

    first: float  # top-1 agreement at the first draft position
    second: float  # top-1 agreement at position 2, teacher-forced on position 1
    num_drafts: int  # number of first draft tokens that were compared
    findings: tuple[Finding, ...]  # best first


@dataclass(frozen=True)
class Reading:
    """One way to read a head's files."""

    name: str
    cause: str  # end of the finding's message: the difference, a colon and the fix
    head: DraftHead
    layers: tuple[int, ...]  # of the target, whose outputs make the features
    second: bool = False  # it changes the second draft token only


def self_check(target: TargetWithLayers, head: DraftHead, tokens: Sequence[int]) -> SelfCheck:
    """Measure a head on the token ids of a text, a few hundred. Of two errors in one head only one may be
    found: fix it and check again. ValueError for a text of fewer than 16 tokens, and for a head that reads
    blocks."""
    if head.two_way:
        raise ValueError(f"a head of {head.method} reads no chains of tokens: check a head such as EAGLE's")
    if len(tokens) < SHORTEST:
        raise ValueError(f"a text of {len(tokens)} tokens says little: give a few hundred")
    readings = list(_readings(target, head))
    layers = frozenset(layer for reading in readings for layer in reading.layers)
    text = torch.tensor(tokens)
    hidden, chosen = _read_text(target, text, layers)
    agreements = [_agreement(reading, text, hidden, chosen) for reading in readings]
    configured, others = agreements[0], list(zip(readings[1:], agreements[1:], strict=True))
    pairs = [(reading, own[reading.second], configured[reading.second]) for reading, own in others]
    better = [pair for pair in pairs if _is_better(pair[1], pair[2])]
    # with errors at the first position, results at the second mean nothing until these are fixed
    better = [pair for pair in better if not pair[0].second] or better
    # readings similar to the right one also beat the configured one: keep only those that none clearly beats
    best = [pair for pair in better if not any(_is_better(other[1], pair[1]) for other in better)]
    best.sort(key=lambda pair: -_share(pair[1]))
    findings = tuple(_finding(reading, own, before) for reading, own, before in best)
    return SelfCheck(_share(configured[0]), _share(configured[1]), len(configured[0]), findings)


def _finding(reading: Reading, own: Tensor, before: Tensor) -> Finding:
    token = "second" if reading.second else "first"
    message = (
        f"the {token} draft is the target's choice at {_share(before):.0%} of {len(before)} tokens, and at "
        f"{_share(own):.0%} {reading.cause}"
    )
    return Finding(reading.name, message, _share(before), _share(own))


def _share(agrees: Tensor) -> float:
    return agrees.double().mean().item()


def _is_better(agrees: Tensor, before: Tensor) -> bool:  # (N,) bool each
    gained, lost = int((agrees & ~before).sum()), int((before & ~agrees).sum())
    clear = gained - lost > DEVIATIONS * math.sqrt(gained + lost)
    return clear and gained - lost >= MARGIN * len(agrees)


def _read_text(
    target: TargetWithLayers, text: Tensor, layers: frozenset[int]
) -> tuple[dict[int, Tensor], Tensor]:  # layer -> (T - 1, D); (T - 1,)
    """The target's hidden states at all tokens but the last, and its most probable token after each."""
    cache = target.open(1, len(text))
    want = Want(hidden=layers, prompt_logits=True)
    _, scores = target.prefill([Prompt(text)], [0], cache, want)
    cache.release([0])
    assert scores.logits is not None
    return dict(scores.hidden), scores.logits.argmax(-1)


def _agreement(
    reading: Reading, text: Tensor, hidden: dict[int, Tensor], chosen: Tensor
) -> tuple[Tensor, Tensor]:  # (N,) bool, (N - 1,) bool
    """Whether the head's first and second draft tokens are the target's choices, at each position.

    The first draft token is predicted from the target's hidden states alone. The second is teacher-forced: a
    tree node below each position has the text's next token and, as its feature, the head's own output."""
    head = reading.head
    weight = next(head.parameters())
    states = torch.cat([hidden[layer] for layer in reading.layers], -1).to(weight)
    # the head reads token t + 1 with the states at token t, and drafts token t + 2
    read, count = text[1:-1], len(text) - 2
    model = HeadModel(head)
    with torch.no_grad():
        features = head.fuse(states[:count])
        if head.knows_tokens:
            before = torch.cat((text[:1], text[: count - 1]))
            features = head.with_tokens(
                features, *(each.to(features.device) for each in (text[:count], before))
            )
    cache = model.model.open(1, 2 * count)
    chain = Forest.chain((count - 1,))
    first = model.model.score(TokenTree(read, chain), [0], cache, model.state, features=[features])
    own = first.hidden[head.state_layer]
    below = Forest(chain.parents + tuple(range(count - 1)), 1)
    tree = TokenTree(torch.cat((read, read[1:])), below)
    second = model.model.score(tree, [0], cache, features=[own[:-1]])
    assert first.logits is not None and second.logits is not None
    return (
        _tokens(head, first.logits) == chosen[1:].cpu(),
        _tokens(head, second.logits) == chosen[2:].cpu(),
    )


def _tokens(head: DraftHead, logits: Tensor) -> Tensor:  # (N, ...) -> (N,)
    logits, ids = head.draft_logits(logits)
    best = logits.argmax(-1)
    return (best if ids is None else ids[best]).cpu()


def _changed(head: DraftHead, **attributes: Any) -> DraftHead:
    """A copy of a head with shared weights and these attributes changed."""
    made: Any = private_copy(head, {}, "sdpa")
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def _readings(target: TargetWithLayers, head: DraftHead) -> Iterator[Reading]:
    """The head as configured, then each other way to read its files."""
    configured = Reading("configured", "", head, tuple(head.taps))
    yield configured
    if isinstance(head, Eagle3Head):
        yield from _readings_of_eagle3(target, head, configured)
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


def _with_fc(head: DraftHead, weight: Tensor) -> DraftHead:
    made: Any = _changed(head)
    made.fc.weight = nn.Parameter(weight.detach())
    return made


def _readings_of_eagle3(target: TargetWithLayers, head: Eagle3Head, configured: Reading) -> Iterator[Reading]:
    taps, key = configured.layers, "eagle_aux_hidden_state_layer_ids"
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
    normed = head.state_layer != -1
    yield replace(
        configured,
        name=f"norm_output {str(normed).lower()}",
        cause=f"when its output is fed back {'after' if normed else 'before'} the norm, as where the key is "
        f"absent and its default differs: set norm_output to {str(normed).lower()} in its config.json",
        head=_changed(head, state_layer=-1 if normed else 0),
        second=True,
    )
    if (ids := head.draft_ids) is not None:
        offsets = ids - torch.arange(len(ids), device=ids.device)
        if len(offsets.unique()) == len(ids):
            yield replace(
                configured,
                name="d2t absolute",
                cause="with d2t as token ids, not as offsets: subtract its index from each entry of d2t",
                head=_changed(head, draft_ids=offsets),
            )
    yield from _readings_of_input_norms(head, configured)


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
