"""Bandits on simulated arms: how often each is chosen, and what is lost against the best one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log, sqrt
from random import Random

import pytest
import torch

from outpace.controllers.bandit import Arm, Bandit, Policy, arms_of
from outpace.core.context import Context
from outpace.core.contracts import Draft, Scores, Step, TokenTree, Verdict
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest
from outpace.drafters.model.cross_vocabulary import CacheSize
from outpace.recipes.control.exp3_spec import EXP3
from outpace.recipes.control.ucb_spec import UCB

LENGTH = 4  # tokens of a draft


class Uniform:
    """A policy that learns nothing."""

    def __init__(self, num_arms: int) -> None:
        self._num_arms = num_arms

    def probs(self) -> list[float]:
        return [1 / self._num_arms] * self._num_arms

    def record(self, arm: int, reward: float | None, largest: float) -> None:
        pass


def play(policy: Policy, rates: Sequence[float], rounds: int, seed: int = 0) -> tuple[list[int], list[float]]:
    """Rounds in which each of `LENGTH` tokens is accepted at the arm's rate if those before it were. Returns
    the arms, and the regret after each round: expected tokens lost against always choosing the best."""
    random, arms, regrets = Random(seed), list[int](), list[float]()
    means = [sum(rate**depth for depth in range(1, LENGTH + 1)) for rate in rates]
    for _ in range(rounds):
        arm = random.choices(range(len(rates)), policy.probs())[0]
        accepted = 0
        while accepted < LENGTH and random.random() < rates[arm]:
            accepted += 1
        policy.record(arm, accepted, LENGTH)
        arms.append(arm)
        regrets.append(max(means) - means[arm] + (regrets[-1] if regrets else 0.0))
    return arms, regrets


def mean_regrets(make: type[UCB] | type[EXP3] | type[Uniform], rounds: int, runs: int = 12) -> list[float]:
    played = [play(make(3), (0.4, 0.8, 0.5), rounds, seed)[1] for seed in range(runs)]
    return [sum(each) / runs for each in zip(*played, strict=True)]


def test_regret_of_ucb_grows_like_the_logarithm() -> None:
    regrets = mean_regrets(UCB, 6000)
    # equal times between powers of 4: the logarithm grows evenly, a linear regret fourfold
    early, late = regrets[1499] - regrets[374], regrets[5999] - regrets[1499]
    assert late < 1.6 * early
    assert regrets[5999] < 0.25 * mean_regrets(Uniform, 6000)[5999]


def test_regret_of_exp3_grows_no_faster_than_the_root() -> None:
    regrets = mean_regrets(EXP3, 6000)
    for rounds in (60, 600, 6000):  # the bound of the theory, for losses of at most LENGTH
        assert regrets[rounds - 1] < 2 * LENGTH * sqrt(rounds * 3 * log(3))
    assert log(regrets[5999] / regrets[374], 16) < 0.6  # the exponent
    assert regrets[5999] < 0.3 * mean_regrets(Uniform, 6000)[5999]


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0])
def test_every_arm_is_tried_once_before_any_is_tried_again(scale: float) -> None:
    assert play(UCB(5, scale=scale), (0.1, 0.9, 0.2, 0.3, 0.9), 5)[0] == [0, 1, 2, 3, 4]


def test_the_best_arm_gets_most_rounds_when_gaps_are_clear() -> None:
    for seed in range(5):
        arms, _ = play(UCB(4, scale=0.1), (0.2, 0.5, 0.85, 0.4), 300, seed)
        assert arms.count(2) >= 0.8 * 300 and set(arms) == {0, 1, 2, 3}
        arms, _ = play(EXP3(4), (0.2, 0.5, 0.85, 0.4), 6000, seed)
        assert arms[-1000:].count(2) >= 0.8 * 1000


def test_the_radius_is_that_of_the_arms_own_rounds() -> None:
    policy = UCB(2, scale=1.0, delta=0.1)
    for arm, reward in ((0, 2), (1, 1), (0, 4), (0, 3)):
        policy.record(arm, reward, 4)
    expected = {
        arm: mean + 4 / 2 * sqrt((1 + n) / n**2 * (1 + 2 * log(2 * 5**2 * sqrt(1 + n) / 0.1)))
        for arm, mean, n in ((0, 3.0, 3), (1, 1.0, 1))
    }
    assert [policy.bound(arm) for arm in (0, 1)] == pytest.approx(list(expected.values()))
    assert policy.probs() == [0.0, 1.0]  # tried once, so it may still be better


def test_losses_of_exp3_are_divided_by_the_probability_of_the_arm() -> None:
    policy = EXP3(2)
    policy.record(0, 1.0, 4)  # loss 3 / 4 at probability 1 / 2
    weight = torch.tensor([-sqrt(log(2) / (2 * 2)) * 0.75 / 0.5, 0.0], dtype=torch.float64).softmax(0)
    assert policy.probs() == pytest.approx(weight.tolist())
    policy.record(1, 2.0, 8)  # the largest reward has grown: the first loss is 7 / 8 now
    losses = [7 / 8 / 0.5, (1 - 2 / 8) / float(weight[1])]
    expected = (-sqrt(log(2) / (3 * 2)) * torch.tensor(losses, dtype=torch.float64)).softmax(0)
    assert policy.probs() == pytest.approx(expected.tolist())


def context(rows: int, limit: int = 9, unread: int = 0, seed: int = 0, turn: int = 0) -> Context:
    lengths = [3 + turn] * rows
    return Context(
        tokens=tuple(torch.zeros(length, dtype=torch.int64) for length in lengths),
        committed=tuple(lengths),
        max_draft_depth=(limit,) * rows,
        slots=tuple(range(rows)),
        cache=CacheSize(100, [0] * rows),
        sampling=(SamplingParams(),) * rows,
        noise=KeyedNoise([seed + row for row in range(rows)], [turn] * rows, lengths),
        unread=(torch.zeros(unread, dtype=torch.int64),) * rows if unread else None,
    )


def step(ctx: Context, drafted: Sequence[int], accepted: Sequence[int], **seconds: float) -> Step:
    forest = Forest.chain(tuple(drafted))
    leaf = tuple(forest.nodes[row][count] for row, count in enumerate(accepted))
    generated = tuple([0] * (count + 1) for count in accepted)
    tree = TokenTree(torch.zeros(len(forest), dtype=torch.int64), forest)
    return Step(ctx, Draft(tree), Scores(0, None), Verdict(leaf, [0] * len(leaf)), leaf, generated, seconds)


def rounds(bandit: Bandit, speeds: Sequence[float], num: int) -> list[int]:
    """The drafters of rounds with one row, in which drafter i generates two tokens at `speeds[i]` tokens per
    second."""
    found: list[int] = []
    for turn in range(num):
        ctx = context(1, turn=turn)
        plan = bandit.plan(ctx)
        assert plan.drafter is not None
        found.append(plan.drafter[0])
        seconds = 2 / speeds[found[-1]]
        bandit.observe(step(ctx, [3], [1], draft=0.75 * seconds, score=0.25 * seconds, caller=5.0))
    return found


def test_drafting_time_counts_in_speed_and_not_in_tokens() -> None:
    by_speed = Bandit(arms_of(2, ()), lambda num: UCB(num, scale=0.1), reward="speed")
    assert rounds(by_speed, (1.0, 3.0), 40).count(1) > 32
    by_tokens = Bandit(arms_of(2, ()), lambda num: UCB(num, scale=0.1), reward="tokens")
    assert abs(rounds(by_tokens, (1.0, 3.0), 40).count(1) - 20) <= 1  # equal: they take turns
    assert by_speed.plans_across_rows and not by_tokens.plans_across_rows


def test_lengths_are_arms() -> None:
    bandit = Bandit(arms_of(1, (0, 2, 4)), UCB, reward="speed")
    planned: list[tuple[int, ...]] = []
    for turn in range(3):
        ctx = context(1, turn=turn)
        planned.append(bandit.plan(ctx).depth)
        bandit.observe(step(ctx, planned[-1], [0], score=1.0))
    assert planned == [(0,), (2,), (4,)]
    assert arms_of(2, (3, 0, 3)) == [Arm(0, 3), Arm(0, 0), Arm(1, 3), Arm(1, 0)]


@pytest.mark.parametrize("make", [UCB, EXP3])
@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_useless_clocks_teach_nothing(make: type[UCB] | type[EXP3], seconds: float) -> None:
    bandit = Bandit(arms_of(3, ()), make, reward="speed")
    chosen: list[int] = []
    for turn in range(60):
        ctx = context(1, turn=turn)
        plan = bandit.plan(ctx)
        assert plan.drafter is not None
        chosen.append(plan.drafter[0])
        bandit.observe(step(ctx, [3], [2], score=seconds))
    assert min(chosen.count(arm) for arm in range(3)) >= 10


def test_steps_that_read_prompts_have_no_speed() -> None:
    bandit = Bandit(arms_of(2, ()), UCB, reward="speed")
    drafters: list[tuple[int, ...] | None] = []
    for turn in range(4):
        ctx = context(1, turn=turn, unread=5 * (turn == 0))
        drafters.append(bandit.plan(ctx).drafter)
        bandit.observe(step(ctx, [3], [2], score=100.0 if turn == 0 else 1.0))
    assert drafters[:3] == [(0,), (1,), (0,)]  # the first round does not count


def test_a_request_begins_without_what_the_one_before_it_taught() -> None:
    bandit = Bandit(arms_of(3, ()), lambda num: UCB(num, scale=0.0), reward="tokens")

    def choose(accepted: int, turn: int) -> int:
        ctx = context(1, turn=turn)
        plan = bandit.plan(ctx)
        assert plan.drafter is not None
        bandit.observe(step(ctx, [3], [accepted]))
        return plan.drafter[0]

    first = [choose(accepted, turn) for turn, accepted in enumerate((0, 0, 3, 3))]
    assert first == [0, 1, 2, 2]
    bandit.release([0])
    assert [choose(0, turn) for turn in range(3)] == [0, 1, 2]


def test_each_row_learns_from_its_own_rounds_and_only_where_it_may_draft() -> None:
    bandit = Bandit(arms_of(2, ()), lambda num: UCB(num, scale=0.0), reward="tokens")
    for turn, accepted in enumerate(((3, 0), (0, 3))):
        ctx = context(2, turn=turn)
        bandit.plan(ctx)
        bandit.observe(step(ctx, [3, 3], accepted))
    assert bandit.plan(context(2, turn=2)).drafter == (0, 1)
    last = replace(context(2, turn=3), max_draft_depth=(0, 4))
    plan = bandit.plan(last)
    assert plan.depth == (0, 4)


def test_arms_are_drawn_with_their_probabilities() -> None:
    rows = 3000
    bandit = Bandit(arms_of(3, ()), EXP3, reward="tokens")
    drafters = bandit.plan(context(rows)).drafter
    assert drafters is not None
    assert all(abs(drafters.count(arm) / rows - 1 / 3) < 0.04 for arm in range(3))


def test_unsuited_arms_are_refused() -> None:
    with pytest.raises(ValueError, match="one arm"):
        Bandit(arms_of(1, ()), UCB, reward="speed")
    with pytest.raises(ValueError, match="reward=speed"):
        Bandit(arms_of(1, (2, 4)), UCB, reward="tokens")
    with pytest.raises(ValueError, match="use 0 for no draft"):
        arms_of(1, (2, -1))
    for options in ({"scale": -1.0}, {"scale": float("nan")}, {"delta": 0.0}, {"delta": 1.5}):
        with pytest.raises(ValueError, match="delta"):
            UCB(2, **options)
