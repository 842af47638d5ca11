"""Decoding steps on a virtual clock: requests with given acceptance rates, and forwards of given cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import torch

from outpace.core.context import Context
from outpace.core.contracts import Controller, Draft, Frontier, Plan, Scores, Step, TokenTree, Verdict
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest
from outpace.drafters.model.cross_vocabulary import CacheSize


@dataclass(frozen=True)
class Costs:
    """Seconds of forwards: a constant, and more per token once there are so many that arithmetic counts."""

    target: float = 10e-3
    draft: float = 1e-3
    per_token: float = 0.5e-3  # of the target; the draft model takes a tenth
    free_tokens: int = 8
    other: float = 0.3e-3
    per_draft_token: float = 0.01e-3

    def of_target(self, tokens: int) -> float:
        return self.target + self.per_token * max(0, tokens - self.free_tokens)

    def of_draft(self, tokens: int) -> float:
        return self.draft + 0.1 * self.per_token * max(0, tokens - self.free_tokens)


@dataclass
class Load:
    """A number of requests decoded at the same time; a request that ends is followed by another."""

    controller: Controller
    rates: Sequence[float]  # acceptance rate of each slot's requests
    costs: Costs = Costs()
    length: int = 100  # generated tokens per request
    prompt: int = 1  # tokens, which one step reads
    seed: int = 0
    seconds: float = 0.0
    tokens: int = 0
    planned: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    jitter: float = 0.0  # relative standard deviation of measured times
    # draft probabilities of the tokens, which are also their probabilities of being accepted: the probability
    # of the first makes their mean the acceptance rate. None: all tokens have the acceptance rate
    draft_probs: tuple[float, float] | None = None
    num_models: int = 1  # draft models that propose at every level, one after the other
    levels_per_forward: int = 1  # of the draft model
    sizes: Sequence[int] = ()  # padded sizes of the target's forwards, as in core.contracts.Target

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._lengths = [self.prompt + 7 * slot % self.length for slot in range(len(self.rates))]
        self._read = [0] * len(self.rates)  # tokens in the draft model's cache
        self._unread = [0] * len(self.rates)  # tokens of the prompt before its last one

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    def run(self, steps: int) -> Load:
        for _ in range(steps):
            self._step()
        return self

    def _step(self) -> None:
        rows = len(self.rates)
        end = self.prompt + self.length
        ctx = Context(
            tokens=tuple(torch.zeros(length, dtype=torch.int64) for length in self._lengths),
            committed=tuple(self._lengths),
            max_draft_depth=tuple(max(0, end - length - 1) for length in self._lengths),
            slots=tuple(range(rows)),
            cache=CacheSize(1 << 20, [0] * rows),
            sampling=(SamplingParams(),) * rows,
            noise=KeyedNoise([0] * rows, [0] * rows, self._lengths),
            unread=tuple(torch.zeros(unread) for unread in self._unread) if any(self._unread) else None,
        )
        plan = self.controller.plan(ctx).within(ctx.max_draft_depth)
        self.planned.append(plan.depth)
        drafts = self._drafts(plan)
        depths = tuple(map(len, drafts))
        drafted, per_forward, draft_seconds = sum(depths), self.levels_per_forward, 0.0
        firsts = range(0, max(depths), per_forward)
        forwards = len(firsts)
        for level in firsts:
            read = [row for row, depth in enumerate(depths) if depth > level]
            missed = sum(self._lengths[row] - 1 - self._read[row] for row in read) if level == 0 else 0
            draft_seconds += self.num_models * self.costs.of_draft(per_forward * len(read) + missed)
        accepted = [self._accepted(draft) for draft in drafts]
        for row, depth in enumerate(depths):
            if depth:
                self._read[row] = self._lengths[row] + min(accepted[row], depth - 1)
        total = rows + drafted + sum(self._unread)
        most = max(self.sizes, default=total)
        whole, rest = divmod(total, most)
        computed = whole * most + next((size for size in (0, *self.sizes) if size >= rest), rest)
        noise = 1 + self.jitter * self._random.gauss(0, 1)
        seconds = {
            "draft": draft_seconds,
            "score": self.costs.of_target(computed) * max(0.5, noise),
            "verify": self.costs.other + self.costs.per_draft_token * drafted,
        }
        self.seconds += sum(seconds.values())
        forest = Forest.chain(depths)
        leaf = [forest.nodes[row][count] for row, count in enumerate(accepted)]
        generated = tuple([0] * (count + 1) for count in accepted)
        self.tokens += sum(map(len, generated))
        confidence = torch.tensor([1.0] * rows + [prob for draft in drafts for prob in draft]).log()
        tree = TokenTree(torch.zeros(len(forest.parents), dtype=torch.int64), forest, confidence)
        draft = Draft(tree, self.num_models * forwards, draft_seconds)
        verdict = Verdict(leaf, [0] * rows)
        scores = Scores(0, None, computed=computed)
        self.controller.observe(Step(ctx, draft, scores, verdict, tuple(leaf), generated, seconds))
        for row in range(rows):
            self._unread[row] = 0
            self._lengths[row] += len(generated[row])
            if self._lengths[row] >= end:
                self.controller.release([row])
                self._lengths[row], self._read[row] = self.prompt, 0
                self._unread[row] = self.prompt - 1

    def _drafts(self, plan: Plan) -> list[list[float]]:
        """The probability of each draft token of each row."""
        drafts: list[list[float]] = [[] for _ in self.rates]
        open_rows = list(range(len(drafts)))
        for level in range(max(plan.depth)):
            open_rows = [row for row in open_rows if plan.depth[row] > level]
            if level and plan.stop is not None and open_rows:
                ends = plan.stop(Frontier(open_rows, [drafts[row] for row in open_rows]))
                open_rows = [row for row, end in zip(open_rows, ends, strict=True) if not end]
            for row in open_rows:
                drafts[row].append(self._draft_prob(self.rates[row]))
        return drafts

    def _draft_prob(self, rate: float) -> float:
        if self.draft_probs is None:
            return rate
        one, other = self.draft_probs
        return one if self._random.random() < (rate - other) / (one - other) else other

    def _accepted(self, draft: Sequence[float]) -> int:
        count = 0
        while count < len(draft) and self._random.random() < draft[count]:
            count += 1
        return count


def best_fixed(make: Callable[[int], Controller], rates: Sequence[float], costs: Costs) -> tuple[int, float]:
    """The fixed depth of 0 to 8 with the highest speed, and that speed."""
    speeds = [Load(make(depth), rates, costs).run(600).speed for depth in range(9)]
    return max(enumerate(speeds), key=lambda pair: pair[1])
