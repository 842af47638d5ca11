"""SWIFT (Xia et al. 2025): the target drafts without sub-layers that a search finds while it decodes.

New here: SkipSetSearch, which tries sets of attention and MLP sub-layers on the tokens that a request has
generated, with a Gaussian process at every 25th trial, and sibling_chain, a chain whose tokens have the more
siblings the less sure the draft is. Reuses: the target without these sub-layers on its own KV cache,
SkipSetDrafter, DraftModel, SelfDraft, Rejection, Confidence. Exact at any temperature: the set follows from
committed tokens, the number of siblings from the distribution before they are drawn, and a draft ends after
a token, which stays in it.

All requests share one search. It ends at a matchness above 0.95, after 300 trials without a gain or after
1000, and starts again when a later request has a lower matchness than chance explains. A trial is a forward
over `window` tokens after each step: it is a part of the time of decoding. Sets are compared on the same text
only. The first and the last layer are never skipped. Requests shorter than `window` draft with what earlier
ones have found. For eager targets: a model compiled with OpenVINO would have to be compiled for every trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from outpace.controllers.confidence import Confidence
from outpace.core.contracts import Cache, Context, Drafter, Parts, Step, Target, Want, recipe
from outpace.core.noise import Key
from outpace.drafters.compose.planned_rows import SelfDraft
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.skip_set_drafter import SkipSetDrafter
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import num_layers, switching
from outpace.recipes.self_speculation.swift.gaussian_process import most_promising
from outpace.recipes.self_speculation.swift.sibling_chain import sibling_chain
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2410.06916", family="self-speculation")
def swift(
    target: Target,
    *,
    skip_ratio: float = 0.45,
    window: int = 32,
    depth: int = 25,
    threshold: float = 0.8,
    sampled: bool = True,
) -> Parts:
    """A chain with siblings, drafted without sub-layers that are searched for, verified by rejection.

    Args:
        skip_ratio: share of the sub-layers, of all layers but the first and the last, that is skipped
        window: generated tokens of a request, its first, by which sets are scored
        depth: most tokens drafted on a path per step
        threshold: end the draft with a token whose draft probability is below this
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    layers = num_layers(target)
    without = switching(target)

    def draft(skip_set: SkipSet) -> Drafter:
        growth = partial(sibling_chain, sampled=sampled, siblings=not target.chains_only)
        return DraftModel(without(skip_set), sampled=sampled, growth=growth)

    def reread(skip_set: SkipSet, cache: Cache, slot: int, text: Tensor, begin: int) -> Tensor:
        return without(skip_set).reread(cache, slot, text, begin)

    search = SkipSetSearch(reread, layers, skip_ratio, window)
    drafter = SkipSetDrafter(draft, search, sampled=sampled)
    return Parts(target, SelfDraft(drafter), Rejection(), Confidence(depth, threshold))


EVERY = 25  # each so-manieth candidate is proposed by a Gaussian process, the others are random
ENOUGH = 0.95  # matchness above which the search ends
PATIENCE, MOST = 300, 1000  # trials without a gain, and trials, after which it ends
FALL = 3.0  # standard errors by which a later request's matchness is lower when it starts again
NOISE = 1e-4  # variance of matchness that the process takes for an error, relative
USE = "skip set"  # of the random numbers that make candidates

# skip set, the target's cache, slot, text (T,), index of the first token that is read -> logits after each
Reread = Callable[[SkipSet, Cache, int, Tensor, int], Tensor]
Candidate = tuple[bool, ...]  # by sub-layer that may be skipped


class SubLayers:
    """The sub-layers of which sets are made, attention and MLP of all layers but the first and the last; in a
    model of two layers those of the last."""

    def __init__(self, num_layers: int, ratio: float) -> None:
        """`ratio`: share of them that is skipped. ValueError for a model of one layer, and for a share of
        none of them."""
        if num_layers < 2:
            raise ValueError("a target of one layer cannot skip any: use a draft model")
        self.layers = range(1, max(num_layers - 1, 2))
        self.num = 2 * len(self.layers)
        self.size = round(ratio * self.num) if 0 <= ratio <= 1 else 0  # NaN and infinity cannot be rounded
        if not self.size:
            raise ValueError(
                f"skip_ratio is {ratio}, and {self.num} sub-layers can be skipped: "
                f"use {1 / self.num:.2g} to 1"
            )

    def alternate(self) -> Candidate:
        """Every second layer; more of them, or fewer, as the size demands."""
        order = [*range(0, len(self.layers), 2), *range(1, len(self.layers), 2)]
        return self.of([part for layer in order for part in (2 * layer, 2 * layer + 1)][: self.size])

    def of(self, parts: Sequence[int]) -> Candidate:
        chosen = set(parts)
        return tuple(part in chosen for part in range(self.num))

    def skip_set(self, candidate: Candidate) -> SkipSet:
        skipped = [part for part, skips in enumerate(candidate) if skips]
        attention, mlp = ([self.layers[part // 2] for part in skipped if part % 2 == side] for side in (0, 1))
        return SkipSet(frozenset(attention), frozenset(mlp))


@dataclass
class Search:
    """The trials since the search began, or was started again."""

    best: Candidate
    tried: dict[Candidate, float] = field(default_factory=dict[Candidate, float])  # last matchness of each
    num_trials: int = 0
    last_gain: int = 1  # number of the trial that found the best; the first scores the one at the beginning
    level: float | None = None  # matchness of the best when the search ended; None: it has not ended
    is_checked: bool = False  # whether `level` is that of a request which came after the end

    def add(self, candidate: Candidate, matchness: float, best: float) -> None:
        """Record a trial. `best`: matchness of the best set on the same text."""
        self.num_trials += 1
        self.tried[candidate] = matchness
        if matchness > best:
            self.best, self.last_gain, best = candidate, self.num_trials, matchness
        if best > ENOUGH or self.num_trials >= MOST or self.num_trials - self.last_gain >= PATIENCE:
            self.level = best

    def falls(self, matchness: float, window: int) -> bool:
        """Whether the best set predicts `window` tokens of a later request less well than when the search
        ended. It was chosen among many by one text, where chance favours it: the first later request tells
        how well it predicts others."""
        assert self.level is not None
        share = (self.level * window + 1) / (window + 2)
        if self.level - matchness > FALL * sqrt(share * (1 - share) / window):
            return True
        if not self.is_checked:
            self.level, self.is_checked = min(self.level, matchness), True
        return False


class SkipSetSearch:
    """Implementation of drafters.model.skip_set_drafter.SkipSets with the search of SWIFT (Xia et al. 2025).

    After each step of a request one candidate is tried: a random set of the fixed size, or every 25th time
    the sub-layers that rank highest at the point that a Gaussian process proposes. Its matchness is the share
    of the first `window` generated tokens that the target without it predicts, in one pass after the KV
    entries of the prompt. The best set so far drafts, at first every second layer. Sets are compared on the
    text of one request, so on a new one the best set is scored first.

    All requests share one search, which ends for all of them. After that, each request costs one pass, with
    the set that was found: where its matchness is lower than when the search ended, by more than FALL
    standard errors over `window` tokens, as after a change of task, the search starts again from that set.
    """

    learns_across_rows = True
    want = Want()

    def __init__(self, reread: Reread, num_layers: int, ratio: float, window: int) -> None:
        """ValueError for a window below 1 and for a `ratio` that `SubLayers` refuses."""
        if window < 1:
            raise ValueError(f"window is {window}: score candidates by at least one generated token")
        self._reread, self._window = reread, window
        self._parts = SubLayers(num_layers, ratio)
        self._search = Search(self._parts.alternate())
        self._num_trials = 0  # of all searches, so that equal seeds do not give equal candidates
        self._scores: dict[int, dict[Candidate, float]] = {}  # slot -> matchness on its text

    def of(self, slot: int) -> SkipSet:
        return self._parts.skip_set(self._search.best)

    def observe(self, step: Step) -> None:
        ctx = step.ctx
        for row in range(len(ctx.slots)):
            enough = ctx.committed[row] >= ctx.prompt_lengths[row] + self._window
            if step.generated[row] and row not in step.finished and enough:
                self._try(ctx, row)

    def _try(self, ctx: Context, row: int) -> None:
        """Score the best set on the text of a request, or another set if that is known."""
        search = self._search
        is_new = search.best not in self._scores.setdefault(ctx.slots[row], {})
        if search.level is not None and not is_new:
            return
        best = self._matchness(search.best, ctx, row)
        if search.level is not None:
            if not search.falls(best, self._window):
                return
            search = self._search = Search(search.best)
        candidate = search.best if is_new else self._next(ctx, row)
        search.add(candidate, self._matchness(candidate, ctx, row), best)
        self._num_trials += 1

    def _next(self, ctx: Context, row: int) -> Candidate:
        search, size = self._search, self._parts.size
        if search.num_trials % EVERY == 0:
            points = [[float(skips) for skips in each] for each in search.tried]
            ranking = most_promising(points, list(search.tried.values()), noise=NOISE)
            return self._parts.of(np.argsort(-ranking, kind="stable")[:size].tolist())
        equal = torch.full((1, self._parts.num), 1 / self._parts.num, dtype=torch.float64)
        key = Key([row], [0], [0], USE, size * self._num_trials)
        return self._parts.of(ctx.noise.draw(equal, size, key, replace=False)[0].tolist())

    def _matchness(self, candidate: Candidate, ctx: Context, row: int) -> float:
        """The matchness of a set on the text of a request."""
        slot, prompt = ctx.slots[row], ctx.prompt_lengths[row]
        scores = self._scores[slot]
        if candidate not in scores:
            text = ctx.tokens[row][: prompt + self._window]
            logits = self._reread(self._parts.skip_set(candidate), ctx.cache, slot, text[:-1], prompt - 1)
            scores[candidate] = float((logits.argmax(-1).cpu() == text[prompt:]).double().mean())
        return scores[candidate]

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._scores.pop(slot, None)
