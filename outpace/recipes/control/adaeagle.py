"""AdaEAGLE (Zhang et al. 2024): before each draft a trained network predicts how long it should be.

New here: PredictedLength and DraftLengthPredictor, a small network on the embedding and the target's hidden
state of the last token that the target has read. Reuses: FeatureDrafter, grow, Rejection. Exact at any
temperature: the length follows from committed tokens only, so tokens that are drawn keep their claim.

`outpace train adaeagle --target TARGET --head HEAD --output FOLDER` trains the predictor for a head of EAGLE
or HASS; neither is changed. It learns from the target's greedy text how many of the head's most probable
tokens are the target's, from every position, up to `predictor.depth` of them. The paper drafts at temperature
0; with `sampled`, as in other methods, tokens of requests at higher temperatures are drawn, and fewer of them
may be accepted than predicted.

A predicted length of 0 is a step of plain decoding. Where padding makes forwards over few tokens equally
expensive, as in compiled ones, short drafts save less than they seem to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import exp, prod

import torch
from torch import Tensor, nn

from outpace.core.context import Context
from outpace.core.contracts import Frontier, Parts, Plan, Step, TargetWithLayers, Want, recipe
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.models.heads.eagle.kind import EagleModel
from outpace.models.predictors.draft_length.predictor import DraftLengthPredictor
from outpace.verifiers.rejection import Rejection

LM_HEAD_INPUT = -1  # in Want.hidden
# draft probability of a path below which dynamic depth decoding ends the draft (Brown et al. 2024): its
# logarithm is -0.6
LEAST_PATH_PROB = exp(-0.6)


@recipe(paper="arXiv:2412.18910", family="control and routing")
def adaeagle(
    target: TargetWithLayers,
    *,
    head: EagleModel,
    predictor: DraftLengthPredictor,
    ddd: bool = False,
    sampled: bool = True,
) -> Parts:
    """A chain from a head, of a length that is predicted before it is drafted, verified by rejection.

    Args:
        head: folder with a head of EAGLE or HASS that was trained for the target
        predictor: folder with a predictor that was trained for the head and the target
        ddd: go on beyond the predicted length while the draft's probability is at least exp(-0.6)
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    predictor.prepare(head, target)
    drafter = FeatureDrafter(head, target.vocab, partial(grow, sampled=sampled), sampled=sampled)
    return Parts(target, drafter, Rejection(), PredictedLength(predictor, target.embed, ddd=ddd))


class PredictedLength:
    """Implementation of core.contracts.Controller (AdaEAGLE, Zhang et al. 2024): chains of the length that a
    predictor expects to be accepted, decided before the first token is drafted.

    The predictor reads the last token before the root, which is the last that the target has read, and the
    target's hidden state after it. Both are committed, so the length does not depend on tokens drawn in the
    step. With length 0 the step is one of plain decoding. So is the first step of a prompt of one token.

    With `ddd` a draft is as long as the longer of two rules allow: beyond the predicted length it goes on, up
    to the predictor's longest, while the product of its draft probabilities is at least `LEAST_PATH_PROB`.
    The token with which it falls below that stays in the draft. The first token is always drafted.
    """

    want = Want(hidden=frozenset({LM_HEAD_INPUT}))
    plans_across_rows = False

    def __init__(self, predictor: DraftLengthPredictor, embed: nn.Module, *, ddd: bool = False) -> None:
        """`embed`: the target's, (M,) tokens -> (M, D)."""
        self._predictor, self._embed, self._ddd = predictor, embed, ddd
        # slot -> (1,) the last token that the target has read, and (1, D) the hidden state after it
        self._last: dict[int, tuple[Tensor, Tensor]] = {}
        self._predicted: list[int] = []  # by row of the step that is planned

    def plan(self, ctx: Context) -> Plan:
        self._predicted = self._lengths(ctx.slots)
        if self._ddd:
            return Plan((self._predictor.depth,) * len(ctx.slots), stop=self._ends)
        return Plan(tuple(self._predicted))

    def _lengths(self, slots: Sequence[int]) -> list[int]:
        known = [slot for slot in slots if slot in self._last]
        if not known:
            return [0] * len(slots)
        tokens, hidden = (torch.cat(each) for each in zip(*map(self._last.__getitem__, known), strict=True))
        embedded = self._embed(tokens.to(next(self._embed.parameters()).device))
        found = dict(zip(known, self._predictor.lengths(embedded, hidden).tolist(), strict=True))
        return [found.get(slot, 0) for slot in slots]

    def _ends(self, frontier: Frontier) -> list[bool]:
        return [
            len(path) >= self._predicted[row] and prod(path) < LEAST_PATH_PROB
            for row, path in zip(frontier.rows, frontier.paths, strict=True)
        ]

    def observe(self, step: Step) -> None:
        hidden = step.scores.hidden[LM_HEAD_INPUT]
        kept = torch.tensor(step.kept)
        tokens = step.draft.tree.tokens[kept.to(step.draft.tree.tokens.device)]
        states = hidden[(kept - step.scores.first).to(hidden.device)]
        for row, slot in enumerate(step.ctx.slots):
            self._last[slot] = tokens[row : row + 1], states[row : row + 1]

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._last.pop(slot, None)
