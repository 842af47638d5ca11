"""The fastest arm on simulated steps: how soon it is found, and what trying the others costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from outpace.controllers.fastest_arm import EXPLORING, FIRST_STEPS, PAUSE, FastestArm
from tests.controllers.test_bandits import context, step

# (accepted tokens, seconds) of a step
Outcome = tuple[int, float]


class Clock:
    """Steps of one controller, with arms whose outcomes are given."""

    def __init__(self, num_arms: int) -> None:
        self.controller = FastestArm(num_arms)
        self.turn = 0

    def play(self, num: int, outcome: Callable[[int], Outcome], rows: int = 1) -> list[int]:
        """The arms of so many steps; `outcome` is what a step of an arm gives in every row."""
        arms: list[int] = []
        for _ in range(num):
            ctx = context(rows, turn=self.turn)
            drafter = self.controller.plan(ctx).drafter
            assert drafter is not None and len(set(drafter)) == 1
            accepted, seconds = outcome(drafter[0])
            self.controller.observe(step(ctx, [9] * rows, [accepted] * rows, score=seconds, caller=7.0))
            arms.append(drafter[0])
            self.turn += 1
        return arms

    def end(self, rows: int = 1) -> None:
        """The requests end."""
        self.controller.release(range(rows))


def fixed(*outcomes: Outcome) -> Callable[[int], Outcome]:
    return lambda arm: outcomes[arm]


DEPTH = 5  # draft tokens of a step
# acceptance rates and seconds of a step by kind of text: plain decoding, lookup, a tree, a draft model
KINDS = {
    "code": ((0.0, 0.45, 0.4, 0.78), (1.0, 1.15, 1.3, 1.75)),
    "edit": ((0.0, 0.9, 0.4, 0.8), (1.0, 1.4, 1.3, 1.75)),
    "random": ((0.0, 0.05, 0.1, 0.15), (1.0, 1.1, 1.25, 1.7)),
}


def tokens(rate: float) -> float:
    """Expected tokens of a step whose draft tokens are accepted at this rate."""
    return sum(rate**depth for depth in range(DEPTH + 1))


def share_of_best(kinds: Sequence[str], seed: int) -> float:
    """Speed relative to the best arm of each request's kind, over 30 requests of 40 steps after a first
    one. Times vary by a tenth."""
    random, clock, best, spent = Random(seed), Clock(4), 0.0, 0.0
    for request in range(31):
        rates, seconds = KINDS[kinds[random.randrange(len(kinds))]]
        speeds = [tokens(rate) / each for rate, each in zip(rates, seconds, strict=True)]

        def outcome(arm: int, rates=rates, seconds=seconds) -> Outcome:
            accepted = 0
            while accepted < DEPTH and random.random() < rates[arm]:
                accepted += 1
            return accepted, seconds[arm] * random.uniform(0.9, 1.1)

        arms = clock.play(40, outcome)
        clock.end()
        if request:
            best += sum(tokens(rates[arm]) for arm in arms) / max(speeds)
            spent += sum(seconds[arm] for arm in arms)
    return best / spent


def test_every_arm_is_tried_and_then_the_fastest_drafts() -> None:
    arms = Clock(3).play(60, fixed((0, 1.0), (3, 1.5), (4, 4.0)))
    assert sorted(arms[: 3 * FIRST_STEPS]) == sorted([0, 1, 2] * FIRST_STEPS)
    assert arms[3 * FIRST_STEPS :].count(1) >= 42


def test_trying_slower_arms_costs_no_more_than_its_share() -> None:
    clock, outcomes = Clock(4), [(0, 1.0), (0, 1.3), (1, 3.0), (0, 2.0)]
    arms = clock.play(4000, fixed(*outcomes))
    later = arms[4 * FIRST_STEPS :]
    lost = sum(outcomes[arm][1] - (outcomes[arm][0] + 1) * 1.0 for arm in later)
    spent = sum(outcomes[arm][1] for arm in later)
    assert 0.5 * EXPLORING * spent < lost < 1.1 * EXPLORING * spent
    counts = [later.count(arm) for arm in range(4)]
    assert counts[1] > counts[2] > 0 and counts[3] > 0  # cheaper ones more often
    tries = [at for at, arm in enumerate(later) if arm]
    assert min(second - first for first, second in zip(tries, tries[1:], strict=False)) >= PAUSE


@pytest.mark.parametrize(
    ("kinds", "least"),
    [(("code",), 0.93), (("edit",), 0.94), (("random",), 0.97), (("code", "edit", "random"), 0.88)],
)
def test_the_best_arm_is_found_in_spite_of_noise(kinds: tuple[str, ...], least: float) -> None:
    assert sum(share_of_best(kinds, seed) for seed in range(4)) / 4 > least


def test_what_earlier_requests_taught_is_kept_for_the_next() -> None:
    clock, outcomes = Clock(3), fixed((0, 1.0), (3, 1.5), (4, 4.0))
    clock.play(30, outcomes)
    clock.end()
    assert clock.play(20, outcomes).count(1) >= 17


def test_a_text_that_changes_is_noticed_within_the_request() -> None:
    clock = Clock(2)
    clock.play(60, fixed((0, 1.0), (5, 1.5)))
    arms = clock.play(60, fixed((0, 1.0), (0, 1.5)))  # drafts stop being accepted
    assert arms[30:].count(0) >= 24
    back = clock.play(200, fixed((0, 1.0), (5, 1.5)))
    assert back[-50:].count(1) >= 40


def test_a_long_first_step_does_not_condemn_an_arm() -> None:
    """A draft model reads the text before its first draft."""
    long = iter([30.0])

    def outcome(arm: int) -> Outcome:
        return (0, 1.0) if arm == 0 else (4, next(long, 1.5))

    assert Clock(2).play(30, outcome)[2 * FIRST_STEPS :].count(1) >= 20


def test_greedy_and_other_numbers_of_rows_are_learned_apart() -> None:
    clock = Clock(2)
    clock.play(20, fixed((0, 1.0), (3, 1.5)))
    assert set(clock.play(2 * FIRST_STEPS, fixed((0, 1.0), (3, 5.0)), rows=4)) == {0, 1}
    clock.end(rows=4)
    assert clock.play(20, fixed((0, 1.0), (3, 5.0)), rows=4).count(0) >= 17
    clock.end(rows=4)
    assert clock.play(20, fixed((0, 1.0), (3, 1.5))).count(1) >= 17


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_useless_clocks_leave_arms_in_turn(seconds: float) -> None:
    arms = Clock(3).play(30, fixed((0, seconds), (3, seconds), (4, seconds)))
    assert set(arms) == {0}  # nothing was measured, so the first one, which is plain decoding, goes on


def test_one_arm_is_refused() -> None:
    with pytest.raises(ValueError, match="one arm, so nothing to choose: give two methods"):
        FastestArm(1)
