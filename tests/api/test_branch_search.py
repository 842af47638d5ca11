"""The search for samples and draft length, on simulated problems whose times follow a roofline."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from outpace.api.branch_search import MIN_GAIN, Outcome, Setting, greedy_search
from outpace.api.majority_vote import Tally

MEMORY, TOKEN, DRAFT = 20e-3, 1e-3, 1e-3  # seconds: to read the weights, of one token, of a draft token
ACCEPTANCE, RIGHT, PROBLEMS = 0.7, 0.55, 400
MAX_SAMPLES, MAX_DEPTH = 32, 8


def step_seconds(setting: Setting) -> float:
    verified = setting.samples * (setting.depth + 1)
    return max(MEMORY, TOKEN * verified) + DRAFT * setting.depth


def speed(setting: Setting) -> float:
    """Tokens per second of a sample."""
    return sum(ACCEPTANCE**n for n in range(setting.depth + 1)) / step_seconds(setting)


@cache
def outcome(setting: Setting, deadline: float) -> Outcome:
    """Samples of 20 to 180 tokens; wrong ones are one of three answers."""
    random, right = Random(1), 0
    for _ in range(PROBLEMS):
        samples = [
            (random.uniform(20, 180), "right" if random.random() < RIGHT else f"wrong {random.randrange(3)}")
            for _ in range(MAX_SAMPLES)
        ][: setting.samples]
        tally = Tally(setting.samples)
        for length, answer in sorted(samples):
            tally.add(answer if length <= deadline * speed(setting) else None)
        right += tally.leader == "right"
    num_tokens = setting.samples * min(100.0, deadline * speed(setting))
    return Outcome(right / PROBLEMS, speed(setting), step_seconds(setting), num_tokens)


def searched(deadline: float, **limits: float):
    given = {"max_samples": MAX_SAMPLES, "max_depth": MAX_DEPTH, **limits}
    return greedy_search(lambda setting: outcome(setting, deadline), **given)


def accuracy(samples: int, depth: int, deadline: float) -> float:
    return outcome(Setting(samples, depth), deadline).accuracy


def test_at_a_tight_deadline_both_together_beat_either_alone() -> None:
    deadline = 1.0
    best = searched(deadline).best
    assert best.samples > 1 and best.depth > 0
    together = accuracy(best.samples, best.depth, deadline)
    assert together > max(accuracy(1, depth, deadline) for depth in range(MAX_DEPTH + 1))
    assert together > max(accuracy(2**power, 0, deadline) for power in range(6))


def test_the_fastest_drafts_are_shorter_the_more_samples_there_are() -> None:
    depths = [
        max(range(MAX_DEPTH + 1), key=lambda depth, n=2**power: speed(Setting(n, depth)))
        for power in range(6)
    ]
    assert depths == sorted(depths, reverse=True) and depths[0] > depths[-1]


def test_the_best_setting_for_a_token_budget_is_another_one() -> None:
    """Draft tokens that are verified and rejected are computed too: for a budget of computed tokens drafts
    only cost."""
    deadline = 1.0
    best = searched(deadline).best
    budget = best.samples * (best.depth + 1) * deadline / step_seconds(best)

    def by_tokens(setting: Setting) -> float:
        generated = sum(ACCEPTANCE**n for n in range(setting.depth + 1)) / (setting.depth + 1)
        return accuracy_after(setting.samples, budget * generated / setting.samples)

    every = [Setting(2**power, depth) for power in range(6) for depth in range(MAX_DEPTH + 1)]
    cheapest = max(every, key=by_tokens)
    assert cheapest.depth == 0 and cheapest != best and by_tokens(cheapest) > by_tokens(best)


def accuracy_after(samples: int, tokens: float) -> float:
    """Accuracy if each sample may generate so many tokens."""
    return outcome(Setting(samples, 0), tokens / speed(Setting(samples, 0))).accuracy


def test_steps_that_take_too_long_are_not_chosen() -> None:
    limit = 25e-3
    found = searched(1.0, max_step_seconds=limit)
    assert (
        found.tried[found.best].step_seconds
        <= limit
        < max(each.step_seconds for each in found.tried.values())
    )


def fixed(accuracies: dict[tuple[int, int], float], speeds: dict[tuple[int, int], float] | None = None):
    seen: list[Setting] = []

    def measure(setting: Setting) -> Outcome:
        seen.append(setting)
        at = setting.samples, setting.depth
        return Outcome(accuracies.get(at, 0.0), (speeds or {}).get(at, 1.0), 1e-3, 1.0)

    return measure, seen


def test_the_move_with_the_larger_gain_is_made_and_each_setting_measured_once() -> None:
    measure, seen = fixed({(1, 0): 0.1, (2, 0): 0.1, (1, 1): 0.2, (4, 0): 0.4, (4, 1): 0.5, (8, 1): 0.6})
    found = greedy_search(measure, max_samples=8, max_depth=2)
    assert found.best == Setting(8, 1) and len(seen) == len(set(seen)) == len(found.tried)
    assert seen[:4] == [Setting(1, 0), Setting(2, 0), Setting(4, 0), Setting(1, 1)]


def test_of_equal_accuracies_the_faster_is_taken_if_it_is_faster() -> None:
    level = {(1, depth): 0.5 for depth in range(4)} | {(2, depth): 0.5 for depth in range(4)}
    measure, _ = fixed(level, {(1, 1): 1.5, (2, 1): 1.6, (1, 2): 1.5 * MIN_GAIN, (2, 0): 1.2})
    assert greedy_search(measure, max_samples=2, max_depth=3).best == Setting(2, 1)
    measure, _ = fixed(level, {(1, 1): 1.01})
    assert greedy_search(measure, max_samples=2, max_depth=3).best == Setting(1, 0)


def test_limits_without_a_setting_are_refused() -> None:
    for limits in ({"max_samples": 0, "max_depth": 1}, {"max_samples": 1, "max_depth": -1}):
        with pytest.raises(ValueError, match="at least one sample"):
            greedy_search(fixed({})[0], **limits)
    assert greedy_search(fixed({})[0], max_samples=1, max_depth=0).best == Setting(1, 0)
