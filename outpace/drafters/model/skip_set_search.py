"""Search for the sub-layers without which a target predicts the tokens that it has generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from outpace.core.contracts import Cache, Context, Step, Want
from outpace.core.noise import Key
from outpace.core.skip_set import SkipSet
from outpace.drafters.model.gaussian_process import most_promising

EVERY = 25  # each so-manieth candidate is proposed by a Gaussian process, the others are random
ENOUGH = 0.95  # matchness above which the search for a request ends
PATIENCE, MOST = 300, 1000  # trials without a gain, and trials, after which it ends
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
    """The trials of one request."""

    best: Candidate
    matchness: float = -1.0  # of the best; -1: it was not scored
    tried: dict[Candidate, float] = field(default_factory=dict[Candidate, float])
    num_trials: int = 0
    last_gain: int = 0  # number of the trial that found the best

    @property
    def ended(self) -> bool:
        return (
            self.matchness > ENOUGH or self.num_trials >= MOST or self.num_trials - self.last_gain >= PATIENCE
        )

    def add(self, candidate: Candidate, matchness: float) -> bool:
        """Record a trial; returns whether it is the best so far."""
        self.num_trials += 1
        self.tried[candidate] = matchness
        if matchness <= self.matchness:
            return False
        self.best, self.matchness, self.last_gain = candidate, matchness, self.num_trials
        return True


class SkipSetSearch:
    """Implementation of drafters.model.skip_set_drafter.SkipSets with the search of SWIFT (Xia et al. 2025).

    After each step of a request one candidate is tried: a random set of the fixed size, or every 25th time
    the sub-layers that rank highest at the point that a Gaussian process proposes. Its matchness is the share
    of the first `window` generated tokens that the target without it predicts, in one pass after the KV
    entries of the prompt. The best set so far drafts. The first trial scores the set with which the request
    began: that of the last gain in any request, at first every second layer. So requests go on with what
    earlier ones found, and after a change of task, where that set predicts less, the search goes on.
    """

    learns_across_rows = True
    want = Want()

    def __init__(self, reread: Reread, num_layers: int, ratio: float, window: int) -> None:
        """ValueError for a window below 1 and for a `ratio` that `SubLayers` refuses."""
        if window < 1:
            raise ValueError(f"window is {window}: score candidates by at least one generated token")
        self._reread, self._window = reread, window
        self._parts = SubLayers(num_layers, ratio)
        self._start = self._parts.alternate()
        self._num_trials = 0  # of all requests, so that equal seeds do not give equal candidates
        self._searches: dict[int, Search] = {}  # by slot

    def of(self, slot: int) -> SkipSet:
        return self._parts.skip_set(self._search(slot).best)

    def _search(self, slot: int) -> Search:
        if slot not in self._searches:
            self._searches[slot] = Search(self._start)
        return self._searches[slot]

    def observe(self, step: Step) -> None:
        ctx = step.ctx
        for row, slot in enumerate(ctx.slots):
            enough = ctx.committed[row] >= ctx.prompt_lengths[row] + self._window
            search = self._search(slot)
            if not step.generated[row] or row in step.finished or not enough or search.ended:
                continue
            candidate = self._next(search, ctx, row)
            matchness = search.tried.get(candidate)
            if matchness is None:
                matchness = self._matchness(candidate, ctx, row)
            if search.add(candidate, matchness):
                self._start = candidate
            self._num_trials += 1

    def _next(self, search: Search, ctx: Context, row: int) -> Candidate:
        if not search.num_trials:
            return search.best
        size = self._parts.size
        if search.num_trials % EVERY == 0:
            points = [[float(skips) for skips in each] for each in search.tried]
            ranking = most_promising(points, list(search.tried.values()), noise=NOISE)
            return self._parts.of(np.argsort(-ranking, kind="stable")[:size].tolist())
        equal = torch.full((1, self._parts.num), 1 / self._parts.num, dtype=torch.float64)
        key = Key([row], [0], [0], USE, size * self._num_trials)
        return self._parts.of(ctx.noise.draw(equal, size, key, replace=False)[0].tolist())

    def _matchness(self, candidate: Candidate, ctx: Context, row: int) -> float:
        prompt = ctx.prompt_lengths[row]
        text = ctx.tokens[row][: prompt + self._window]
        logits = self._reread(
            self._parts.skip_set(candidate), ctx.cache, ctx.slots[row], text[:-1], prompt - 1
        )
        return float((logits.argmax(-1).cpu() == text[prompt:]).double().mean())

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._searches.pop(slot, None)
