"""NormalHedge and the controller that uses it, on simulated losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import e, log, sqrt
from random import Random

import pytest
import torch

from outpace.core.context import Context
from outpace.core.contracts import Draft, Scores, Step, TokenTree, Verdict
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest
from outpace.drafters.model.cross_vocabulary import CacheSize
from outpace.recipes.control.hedge_spec.normal_hedge import NormalHedge, scale_of
from outpace.recipes.control.hedge_spec.recipe import DelayedLosses, Hedge, expected_tokens
from outpace.recipes.control.ucb_spec import UCB

DEPTH = 4


def test_the_scale_is_the_hand_computed_one() -> None:
    # one positive regret R of N: (exp(R² / 2c) + N - 1) / N = e
    for regret, count in ((3.0, 2), (0.01, 5), (40.0, 9)):
        regrets = [regret] + [0.0] * (count - 1)
        assert scale_of(regrets) == pytest.approx(regret**2 / (2 * log(count * (e - 1) + 1)), rel=1e-9)
    # two equal ones of two: exp(R² / 2c) = e
    assert scale_of([2.0, 2.0]) == pytest.approx(2.0**2 / 2, rel=1e-9)


def test_weights_follow_positive_regrets() -> None:
    experts = NormalHedge(3)
    assert experts.weights() == [1 / 3] * 3
    experts.update([1 / 3] * 3, [0.0, 0.6, 0.9])
    assert experts.regrets == pytest.approx([0.5, -0.1, -0.4])
    assert experts.weights() == [1.0, 0.0, 0.0]
    experts.regrets = [2.0, 1.0, -5.0]
    c = scale_of([2.0, 1.0, 0.0])
    ratio = 2 * torch.tensor((2.0**2 - 1.0**2) / (2 * c)).exp().item()
    weights = experts.weights()
    assert weights[0] / weights[1] == pytest.approx(ratio, rel=1e-5) and weights[2] == 0
    experts.regrets = [-1.0, 0.0, -2.0]
    assert experts.weights() == [1 / 3] * 3


@pytest.mark.parametrize("count", [2, 8, 32])
def test_regret_is_within_a_constant_of_the_root(count: int) -> None:
    for seed in range(3):
        random, experts = Random(seed), NormalHedge(count)
        for turn in range(1, 1201):
            # the best half changes place: no expert is good all the time
            bad = 0.3 if turn % 400 < 200 else -0.3
            losses = [random.random() * 0.7 + max(0.0, bad * (-1) ** expert) for expert in range(count)]
            experts.update(experts.weights(), losses)
            assert max(experts.regrets) <= 3 * sqrt(turn * log(count)) + 3


def test_losses_come_in_order_when_the_draft_from_them_is_known() -> None:
    queue, found = DelayedLosses(3), list[tuple[Sequence[float], list[float]]]()
    positions = [(1.0, 0.5), (0.5, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 0.5)]
    counts = list[int]()
    for number, accepted in enumerate(positions):
        found += queue.add([number], accepted)
        counts.append(len(found))
    assert counts == [0, 0, 1, 2, 3]  # the first is known when two more positions are
    assert [weights for weights, _ in found] == [[0], [1], [2]]
    # E = 1 + a + a b + a b c of the three probabilities from each position
    expected = [(1 + 1 + 0.5 + 0, 1 + 0.5 + 0 + 0), (1 + 0.5, 1), (1, 1 + 1 + 1 + 0.5)]
    for (_, losses), tokens in zip(found, expected, strict=True):
        assert losses == pytest.approx([1 - each / 4 for each in tokens])
    # the sum over k of k (1 - rate k) times the rates before it, the last rate being 0
    rates = (0.9, 0.3, 0.6)
    written = 0.1 * 1 + 0.9 * 0.7 * 2 + 0.9 * 0.3 * 0.4 * 3 + 0.9 * 0.3 * 0.6 * 4
    assert expected_tokens(rates) == pytest.approx(written)


def context(turn: int, slots: Sequence[int] = (0,)) -> Context:
    lengths = [5 + turn] * len(slots)
    return Context(
        tokens=tuple(torch.zeros(length, dtype=torch.int64) for length in lengths),
        committed=tuple(lengths),
        max_draft_depth=(9,) * len(slots),
        slots=tuple(slots),
        cache=CacheSize(100, [0] * 9),
        sampling=(SamplingParams(),) * len(slots),
        noise=KeyedNoise(list(slots), [turn] * len(slots), lengths),
    )


def step(ctx: Context, num_generated: int) -> Step:
    forest = Forest.chain((DEPTH,) * len(ctx.slots))
    tree = TokenTree(torch.zeros(len(forest), dtype=torch.int64), forest)
    leaf = tuple(nodes[num_generated - 1] for nodes in forest.nodes)
    generated = tuple([0] * num_generated for _ in ctx.slots)
    return Step(ctx, Draft(tree), Scores(0, None), Verdict(leaf, [0] * len(leaf)), leaf, generated, {})


Rates = Callable[[int], Sequence[float]]  # step -> acceptance rate of each drafter


def missed_by_hedge(rates: Rates, count: int, steps: int, seed: int) -> list[bool]:
    """By step whether another drafter than the best one drafts; each position's rates vary around `rates`."""
    random, latest = Random(seed), dict[int, list[list[float]]]()

    def compare(step: Step) -> Mapping[int, Sequence[Sequence[float]]]:
        return latest

    hedge, missed = Hedge(count, DEPTH, compare), list[bool]()
    for turn in range(steps):
        now, ctx = rates(turn), context(turn, (seed,))
        drafter = hedge.plan(ctx).drafter
        assert drafter is not None
        missed.append(now[drafter[0]] < max(now))
        accepted = tokens_accepted(random, now[drafter[0]])
        latest[0] = [[varied(random, rate) for rate in now] for _ in range(accepted + 1)]
        hedge.observe(step(ctx, accepted + 1))
    return missed


def missed_by_ucb(rates: Rates, count: int, steps: int, seed: int) -> list[bool]:
    random, policy, missed = Random(seed), UCB(count, scale=0.1), list[bool]()
    for turn in range(steps):
        now = rates(turn)
        arm = policy.probs().index(1.0)
        missed.append(now[arm] < max(now))
        policy.record(arm, tokens_accepted(random, now[arm]), DEPTH)
    return missed


def varied(random: Random, rate: float) -> float:
    return min(1.0, max(0.0, rate + random.uniform(-0.3, 0.3)))


def tokens_accepted(random: Random, rate: float) -> int:
    accepted = 0
    while accepted < DEPTH and random.random() < rate:
        accepted += 1
    return accepted


def test_the_right_expert_is_found_faster_than_by_a_bandit_and_more_so_in_a_larger_pool() -> None:
    gaps = list[float]()
    for count in (3, 12):
        rates = [0.4] * (count - 1) + [0.8]
        found = [missed_by_hedge(lambda turn, rates=rates: rates, count, 40, seed) for seed in range(8)]
        other = [missed_by_ucb(lambda turn, rates=rates: rates, count, 40, seed) for seed in range(8)]
        gaps.append((sum(map(sum, other)) - sum(map(sum, found))) / 8)
        assert all(sum(missed[8:]) <= 4 for missed in found)  # settled after a few steps
    assert gaps[0] > 0
    assert gaps[1] > 2 * gaps[0]


def test_weights_follow_a_change_of_domain_after_as_many_tokens() -> None:
    changing = missed_by_hedge(lambda turn: (0.9, 0.3, 0.3) if turn < 8 else (0.3, 0.9, 0.3), 3, 60, 1)
    assert not any(changing[6:8]) and sum(changing[40:]) <= 2


def test_a_request_begins_with_equal_weights_and_rows_do_not_share_theirs() -> None:
    def compare(step: Step) -> Mapping[int, Sequence[Sequence[float]]]:
        rates = {0: [1.0, 0.0], 1: [0.0, 1.0]}
        return {row: [rates[slot]] * DEPTH for row, slot in enumerate(step.ctx.slots)}

    hedge = Hedge(2, DEPTH, compare)
    ctx = context(0, (0, 1))
    hedge.plan(ctx)
    hedge.observe(step(ctx, DEPTH))
    assert [list(hedge.weights(slot)) for slot in (0, 1)] == [[1.0, 0.0], [0.0, 1.0]]
    plan = hedge.plan(context(1, (0, 1)))
    assert plan.drafter == (0, 1) and plan.depth == (DEPTH, DEPTH)
    hedge.release([0])
    assert [list(hedge.weights(slot)) for slot in (0, 1)] == [[0.5, 0.5], [0.0, 1.0]]


def test_losses_are_weighed_with_the_weights_of_the_step_that_drafted() -> None:
    """They are known later, when the weights are others."""
    random, positions = Random(4), list[list[float]]()

    def compare(step: Step) -> Mapping[int, Sequence[Sequence[float]]]:
        return {0: positions[-2:]}

    hedge, experts, weights = Hedge(3, DEPTH, compare), NormalHedge(3), list[Sequence[float]]()
    for turn in range(12):
        ctx = context(turn)
        hedge.plan(ctx)
        weights += [list(hedge.weights(0))] * 2
        positions += [[random.random() for _ in range(3)] for _ in range(2)]
        hedge.observe(step(ctx, 2))
    for first in range(len(positions) - DEPTH + 1):
        following = zip(*positions[first : first + DEPTH], strict=True)
        experts.update(weights[first], [1 - expected_tokens(rates) / (DEPTH + 1) for rates in following])
    assert len({tuple(each) for each in weights}) > 4
    assert hedge.weights(0) == pytest.approx(experts.weights())


def test_a_depth_of_0_is_refused() -> None:
    with pytest.raises(ValueError, match="use 1 or more"):
        Hedge(2, 0, lambda step: {})
