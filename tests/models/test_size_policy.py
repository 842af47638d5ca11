"""Sizes of compiled inferences follow the times that were measured, and never their noise."""

from __future__ import annotations

import random

import pytest

from outpace.models.openvino.size_policy import (
    FINER,
    MAX_TOKENS,
    MEASURED,
    SIZES,
    SizeChoice,
    SizePolicy,
    SizeTimes,
    policy_by_weights,
    policy_of,
)

ALL = tuple(sorted((*SIZES, *FINER)))
SMALL, LARGE = 10_000_000, 200_000_000  # numbers of weights


def times(seconds, change, *, noise=None, rounds=6):
    """Times as they would be measured, for a function of the number of tokens."""

    def one(exact):
        return exact * (1 + noise.random() ** 3 * 2) if noise else exact

    return {
        size: SizeTimes(
            [one(seconds(size) + change) for _ in range(rounds)],
            [one(seconds(size)) for _ in range(2 * rounds)],
        )
        for size in MEASURED
    }


def sizes_of(policy, totals):
    choice = SizeChoice(policy)
    return [choice.take(total) for total in totals]


def test_where_tokens_cost_little_sizes_are_few_and_kept_for_long():
    policy = policy_of(times(lambda size: 1e-3 + 1e-5 * size, 2e-3), LARGE)
    assert policy.sizes == SIZES and policy.max_padding == pytest.approx(4e-3)
    assert sizes_of(policy, [60, *[5] * 7]) == [64] * 7 + [6]  # 0.58 ms of padding each


def test_where_forwards_take_as_long_as_tokens_sizes_are_many_and_change_at_once():
    policy = policy_of(times(lambda size: 2e-3 * size, 2e-3), SMALL)
    assert policy.sizes == ALL
    assert sizes_of(policy, [30, 17, 9, 6, 12]) == [32, 20, 11, 6, 13]
    # two tokens of padding take as long as two changes: a smaller size is taken for more than that
    assert sizes_of(policy, [8, 5, 5]) == [8, 8, 6]


def test_further_sizes_are_those_that_save_a_change():
    policy = policy_of(times(lambda size: 1e-3 + 1e-4 * size, 0.79e-3), SMALL)
    assert set(policy.sizes) == {*SIZES, 24, 40, 56}


def test_a_change_costs_no_more_than_it_saves():
    """Over many random numbers of tokens, padding and changes together take at most twice as long as the best
    choice in hindsight, for two sizes; and a size that never changes is that of its tokens."""
    change, cheap, dear = 3e-3, 1e-3, 2e-3
    policy = SizePolicy((1, 16, MAX_TOKENS), {1: cheap, 16: cheap, MAX_TOKENS: dear}, 2 * change, 0)
    choice = random.Random(3)
    for share in (0.02, 0.2, 0.5, 0.9):
        totals = [MAX_TOKENS if choice.random() < share else 16 for _ in range(2_000)]
        found = sizes_of(policy, totals)
        changes = sum(one != other for one, other in zip(found, found[1:], strict=False))
        spent = (dear - cheap) * sum(size - total > 0 for size, total in zip(found, totals, strict=True))
        # hindsight: best total cost with each size before it
        best = {16: 0.0, MAX_TOKENS: 0.0}
        for total in totals:
            smaller, larger = best[16], best[MAX_TOKENS]
            best = {
                16: min(smaller, larger + change) if total == 16 else float("inf"),
                MAX_TOKENS: min(larger, smaller + change) + (dear - cheap) * (total == 16),
            }
        assert spent + change * changes <= 2 * min(best.values()) + 2 * change


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_a_busy_machine_changes_little(seed):
    noise = random.Random(seed)
    for seconds, change in (
        (lambda size: 1.2e-3 + 8e-5 * size, 1.6e-3),
        (lambda size: 2e-2 + 2e-3 * size, 4e-3),
        (lambda size: 1e-2 + 1e-4 * max(0, size - 16), 1e-3),
    ):
        policy = policy_of(times(seconds, change, noise=noise), SMALL)
        assert policy.sizes[0] == 1 and policy.sizes[-1] == MAX_TOKENS
        assert list(policy.sizes) == sorted(policy.sizes)
        costs = [policy.costs[size] for size in policy.sizes]
        assert costs == sorted(costs)
        assert set(policy.sizes) >= set(SIZES)


@pytest.mark.parametrize("num_weights", [SMALL, LARGE])
def test_measurements_that_say_nothing_leave_the_policy_by_the_number_of_weights(num_weights):
    guess = policy_by_weights(num_weights)
    few = times(lambda size: 1e-3 * size, 1e-3)
    for size in MEASURED[3:]:
        few[size] = SizeTimes()
    assert policy_of(few, num_weights) == guess
    assert policy_of(times(lambda size: 1e-3 * size, 1e-3, rounds=1), num_weights) == guess
    assert policy_of(times(lambda size: 1e-3 * size, -1e-4), num_weights) == guess
    odd = times(lambda size: 3e-3 if size == 11 else 1e-3 + 1e-6 * size, 1e-3)
    assert policy_of(odd, num_weights) == guess
    # as long as ten inferences of half as many tokens
    odd = times(lambda size: 1e-3 if size < 16 else 1e-2, 1e-3)
    assert policy_of(odd, num_weights) == guess


def test_without_measurements_the_number_of_weights_decides():
    assert policy_by_weights(SMALL).sizes == SIZES and policy_by_weights(LARGE).sizes == ALL
    totals = [11, 6, 11, 6, 6, 2]
    assert sizes_of(policy_by_weights(1_000), [3, 6, 2, 11, 60, 2, 5]) == [6, 6, 6, 11, 64, 6, 6]
    assert sizes_of(policy_by_weights(12_500_000), totals) == [11, 11, 11, 11, 6, 6]
    assert sizes_of(policy_by_weights(LARGE), totals) == [11, 6, 11, 6, 6, 2]
    assert sizes_of(policy_by_weights(LARGE), [3, 22, 98, 257, 7]) == [4, 24, 112, 512, 8]


def test_when_a_token_is_computed_alone_does_not_depend_on_times():
    totals = [11, 1, 1, 1, 1, 1, 1, 1, 2, 1, *[1] * 8, 40, 1]
    for num_weights, last in ((1_000, 6), (12_500_000, 1), (LARGE, 0)):
        alone = []
        for policy in (
            policy_by_weights(num_weights),
            policy_of(times(lambda size: 1e-3 + 1e-6 * size, 2e-3), num_weights),
            policy_of(times(lambda size: 2e-3 * size, 2e-3), num_weights),
        ):
            assert policy.max_single == last
            alone.append([size == 1 for size in sizes_of(policy, totals)])
        assert alone[0] == alone[1] == alone[2] and sum(alone[0]) > 0
