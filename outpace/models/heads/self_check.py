"""Finds errors in the files of a draft head that load without an error and only lower its acceptance: layer
numbers off by one, swapped halves of a matrix, a missing norm.

The check reads a text once with the target and measures how often the head's most probable token is the
target's (top-1 agreement), for the head as configured and for each other way to read its files, a "reading".

Letters: T tokens of the text, N drafts compared, D hidden size of the target, K tokens of the draft
vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.core.contracts import Prompt, TargetWithLayers, Want
from outpace.core.tree import Forest, TokenTree
from outpace.models.heads.block_states import block_states
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.readings import Reading, readings

# Another reading is better than the configured one if it agrees with the target at more positions, by 4
# standard deviations of McNemar's test and by 5 percentage points: neighbouring positions are not
# independent, and every change moves acceptance a little.
DEVIATIONS, MARGIN = 4.0, 0.05
SHORTEST = 16  # tokens of a text
BLOCKS = 32  # that a head for two-way blocks reads in one forward


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


def self_check(target: TargetWithLayers, head: DraftHead, tokens: Sequence[int]) -> SelfCheck:
    """Measure a head on the token ids of a text, a few hundred. Of two errors in one head only one may be
    found: fix it and check again. ValueError for a text of fewer than 16 tokens."""
    if len(tokens) < SHORTEST:
        raise ValueError(f"a text of {len(tokens)} tokens says little: give a few hundred")
    tried = list(readings(target, head))
    layers = frozenset(layer for reading in tried for layer in reading.layers)
    text = torch.tensor(tokens)
    hidden, chosen = _read_text(target, text, layers)
    agreement = _agreement_of_blocks if head.two_way else _agreement
    agreements = [agreement(reading, text, hidden, chosen) for reading in tried]
    configured, others = agreements[0], list(zip(tried[1:], agreements[1:], strict=True))
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
    tree node below each position has the text's next token and, as its feature, the head's own output; or
    there is a mask, where the head drafts in masks."""
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
    tokens, given = read[1:], first.hidden[head.state_layer][:-1]
    if head.drafts_in_masks:
        ids, feature = head.mask_inputs(1)
        tokens, given = ids.cpu().expand(count - 1), feature.to(given).expand(count - 1, -1)
    below = Forest(chain.parents + tuple(range(count - 1)), 1)
    second = model.model.score(TokenTree(torch.cat((read, tokens)), below), [0], cache, features=[given])
    assert first.logits is not None and second.logits is not None
    return (
        _tokens(head, first.logits) == chosen[1:].cpu(),
        _tokens(head, second.logits) == chosen[2:].cpu(),
    )


def _agreement_of_blocks(
    reading: Reading, text: Tensor, hidden: dict[int, Tensor], chosen: Tensor
) -> tuple[Tensor, Tensor]:  # (N,) bool, (N - 1,) bool
    """The same for a head that reads two-way blocks: the first two tokens of a block behind each position. A
    block that drafts one token has no second one, which counts as wrong."""
    head, count = reading.head, len(text) - 2
    weight = next(iter(head.own.values()))
    tokens = text[None].to(weight.device)
    found: tuple[list[Tensor], list[Tensor]] = [], []
    with torch.no_grad():
        features = head.fuse(torch.cat([hidden[layer] for layer in reading.layers], -1).to(weight))[None]
        for columns in torch.arange(count, device=weight.device).split(BLOCKS):
            states = block_states(head, tokens, features, columns[None], causal=reading.causal)[0]
            for level, drafts in enumerate(found[: head.block_levels]):
                outputs = head.norm(states[:, level + (not head.drafts_at_root)])
                logits = head.given_tokens(head.lm_head(outputs), tokens[0, columns + 1 + level])
                drafts.append(_tokens(head, logits))
    first, second = (torch.cat(drafts) if drafts else torch.full((count,), -1) for drafts in found)
    return first == chosen[1:].cpu(), second[:-1] == chosen[2:].cpu()


def _tokens(head: DraftHead, logits: Tensor) -> Tensor:  # (N, ...) -> (N,)
    logits, ids = head.draft_logits(logits)
    best = logits.argmax(-1)
    return (best if ids is None else ids[best]).cpu()
