"""The arm that generates most tokens per second, by what was measured of all requests and of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from outpace.controllers.bandit import step_seconds
from outpace.core.context import Context
from outpace.core.contracts import Plan, Step, Want

FIRST_STEPS = 4  # steps of each arm before arms are compared
OWN_STEPS = 8.0  # steps that what is known of all requests counts for at the beginning of a request
# share of the evidence that is kept per step of an arm: of all requests, of one
KEEP_ALL, KEEP_OWN = 0.995, 0.9
EXPLORING = 0.01  # share of the time that may be lost by steps of other arms than the fastest
DOUBT = 0.5  # after n steps of an arm it may be faster than it was by this, divided by the root of n
PAUSE = 8  # steps after which another arm may be tried again
LONGEST = 2.0  # times the usual: as long as a step counts at most. A draft model first reads the text so far


@dataclass(slots=True)
class Evidence:
    """What the steps of one arm generated, and how long they took; recent steps weigh more."""

    tokens: float = 0.0
    seconds: float = 0.0
    steps: float = 0.0

    def add(self, tokens: float, seconds: float, keep: float) -> None:
        """Add a step."""
        self.tokens = keep * self.tokens + tokens
        self.seconds = keep * self.seconds + seconds
        self.steps = keep * self.steps + 1

    def times(self, steps: float) -> Evidence:
        """The same evidence with the weight of so many steps."""
        weight = steps / self.steps
        return Evidence(self.tokens * weight, self.seconds * weight, steps)


class Experience:
    """What is known of all requests of one kind: greedy or sampled, with so many rows in a step."""

    def __init__(self, num_arms: int) -> None:
        self.arms = [Evidence() for _ in range(num_arms)]
        self.num_measured = [0] * num_arms  # steps of each arm
        self.last = [0] * num_arms  # step in which each arm was chosen last
        self.num_steps = self.tried = 0  # steps, and the one in which another arm was tried last
        self.elapsed = 0.0  # seconds of all steps
        self.lost = [0.0] * num_arms  # seconds that each arm was expected to lose when it was tried

    def add(self, arm: int, tokens: float, seconds: float) -> float | None:
        """Add a step with the mean number of tokens of its rows. Returns the seconds that count; None for the
        first step of an arm, with which there is nothing to compare."""
        known, counted = self.arms[arm], None
        if self.num_measured[arm] == 1:
            known.seconds = min(known.seconds, LONGEST * seconds)
        if self.num_measured[arm]:
            counted = seconds = min(seconds, LONGEST * known.seconds / known.steps)
        known.add(tokens, seconds, KEEP_ALL)
        self.num_measured[arm] += 1
        self.elapsed += seconds
        return counted


class FastestArm:
    """Implementation of core.contracts.Controller that lets one arm draft for all rows of a step: the one
    with the most expected tokens per second.

    Every arm has a few steps at first. From then on it is expected to be as fast as in the last steps of the
    request, in which it counts at first as it was in all requests. From time to time another arm is tried,
    the one that was chosen longest ago among those that would not lose more by it than their part of
    `EXPLORING`, a share of the time so far: arms that are hardly slower are tried often, others seldom. So
    the choice follows the text, and costs little where no draft pays.

    The choice follows from committed tokens, earlier steps and measured times. Steps that read prompts, and
    steps whose time is not positive, are not measured.
    """

    want = Want()
    plans_across_rows = True

    def __init__(self, num_arms: int) -> None:
        """ValueError for fewer than two arms."""
        if num_arms < 2:
            raise ValueError("there is one arm, so nothing to choose: give two methods or more")
        self._num_arms = num_arms
        self._experience: dict[tuple[bool, int], Experience] = {}
        self._own: dict[int, dict[int, Evidence]] = {}  # slot -> by arm that has drafted for it
        self._planned: tuple[int, ...] = ()  # slots of the rows that are drafted in this step
        self._arm = 0  # the arm of this step

    def plan(self, ctx: Context) -> Plan:
        self._planned = tuple(
            [slot for slot, depth in zip(ctx.slots, ctx.max_draft_depth, strict=True) if depth]
        )
        if self._planned:
            self._arm = self._next(self._experienced(ctx))
        return Plan(ctx.max_draft_depth, drafter=(self._arm,) * len(ctx.slots))

    def _experienced(self, ctx: Context) -> Experience:
        """What is known of requests of this kind; numbers of rows between two powers of two are alike."""
        kind = all(params.greedy for params in ctx.sampling), len(ctx.slots).bit_length()
        if kind not in self._experience:
            self._experience[kind] = Experience(self._num_arms)
        return self._experience[kind]

    def _next(self, known: Experience) -> int:
        """The arm of this step."""
        arms = range(self._num_arms)
        known.num_steps += 1
        arm = min(arms, key=known.num_measured.__getitem__)
        if known.num_measured[arm] >= FIRST_STEPS:
            speeds = self._speeds(known)
            arm = max(arms, key=lambda arm: speeds[arm] * (1 + DOUBT / sqrt(known.num_measured[arm])))
            if known.num_steps - known.tried >= PAUSE:
                arm = self._tried(known, speeds, arm)
        known.last[arm] = known.num_steps
        return arm

    def _speeds(self, known: Experience) -> list[float]:
        """Expected tokens per second of each arm, of all rows together."""
        speeds = [0.0] * self._num_arms
        for slot in self._planned:
            own = self._own.get(slot, {})
            for arm, usual in enumerate(known.arms):
                evidence = own.get(arm, usual)
                speeds[arm] += evidence.tokens / evidence.seconds
        return speeds

    def _tried(self, known: Experience, speeds: Sequence[float], best: int) -> int:
        """Another arm that may be tried in this step; `best` if there is none."""
        share = EXPLORING * known.elapsed / (self._num_arms - 1)
        affordable: dict[int, float] = {}
        for arm, usual in enumerate(known.arms):
            loss = usual.seconds / usual.steps * max(0.0, 1 - speeds[arm] / speeds[best])
            if arm != best and known.lost[arm] + loss <= share:
                affordable[arm] = loss
        if not affordable:
            return best
        arm = min(affordable, key=known.last.__getitem__)
        known.tried = known.num_steps
        known.lost[arm] += affordable[arm]
        return arm

    def observe(self, step: Step) -> None:
        planned, self._planned = self._planned, ()
        seconds, slots = step_seconds(step), step.ctx.slots
        if seconds is None or planned != slots or not all(step.generated):
            return
        leaves = [step.draft.tree.forest.depths[leaf] for leaf in step.verdict.leaf]
        known = self._experienced(step.ctx)
        seconds = known.add(self._arm, 1 + sum(leaves) / len(leaves), seconds)
        if seconds is None:
            return
        for slot, accepted in zip(slots, leaves, strict=True):
            own = self._own.setdefault(slot, {})
            if self._arm not in own:
                own[self._arm] = known.arms[self._arm].times(OWN_STEPS)
            own[self._arm].add(accepted + 1, seconds, KEEP_OWN)

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._own.pop(slot, None)
