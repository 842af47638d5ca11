"""Adaptive depths on a virtual clock: what SmartSpec promises as load and acceptance change."""

from __future__ import annotations

from statistics import mean
from typing import cast

import numpy
import pytest

from outpace.controllers.acceptance_rates import AcceptanceRates
from outpace.controllers.adaptive_depth import AdaptiveDepth
from outpace.controllers.fixed import Fixed
from outpace.controllers.step_cost import ASSUMED_GROWTH, MIN_TIMES, MeasuredStep, StepCost
from outpace.cost.linear_cost import MAX_SIZES, LinearCost, Numbers, rounded
from tests.controllers.simulated_load import Costs, Load
from tests.tiers import slow

WARM_UP = 200  # steps, in which costs and acceptance rates become known
CHEAP_DRAFT = Costs(draft=0.5e-3)
LOADS = (1, 2, 4, 8, 16, 32, 64)


def warm(controller: AdaptiveDepth, rates: list[float], costs: Costs, seed: int = 0) -> Load:
    load = Load(controller, rates, costs, jitter=0.1, seed=seed).run(WARM_UP)
    load.seconds, load.tokens, load.planned = 0.0, 0, []
    return load


def plain_speed(rates: list[float], costs: Costs) -> float:
    return Load(Fixed(0), rates, costs).run(100).speed


def best_fixed_speed(rates: list[float], costs: Costs) -> float:
    return max(Load(Fixed(depth), rates, costs).run(250).speed for depth in range(9))


def mean_depth(load: Load) -> float:
    return mean(sum(depths) / len(depths) for depths in load.planned)


@pytest.mark.slow
def test_depths_fall_to_0_as_load_rises_and_plain_decoding_is_never_much_faster() -> None:
    depths: list[float] = []
    for rows in LOADS:
        rates = [0.75] * rows
        load = warm(AdaptiveDepth(8), rates, CHEAP_DRAFT).run(300)
        depths.append(mean_depth(load))
        assert load.speed > 0.95 * plain_speed(rates, CHEAP_DRAFT), rows
    assert all(later < earlier + 0.3 for earlier, later in zip(depths, depths[1:], strict=False)), depths
    assert depths[0] > 4 and depths[-1] < 0.1, depths


def test_levels_of_a_forward_that_is_made_anyway_cost_their_verification_alone() -> None:
    rates, costs, blocks, found = [0.7] * 2, Costs(draft=4e-3), {"levels_per_forward": 8}, list[Load]()
    best = max(Load(Fixed(depth), rates, costs, **blocks).run(250).speed for depth in range(9))
    for told in (8, 1):
        controller = AdaptiveDepth(8, levels_per_forward=told)
        load = Load(controller, rates, costs, jitter=0.1, **blocks).run(WARM_UP)
        load.seconds, load.tokens, load.planned = 0.0, 0, []
        found.append(load.run(800))
    assert found[0].speed > 0.94 * best
    assert mean_depth(found[0]) > mean_depth(found[1]), list(map(mean_depth, found))


@pytest.mark.parametrize(
    ("rate", "rows"),
    [
        (0.6, 1),
        (0.2, 4),
        *(
            pytest.param(rate, rows, marks=pytest.mark.slow)
            for rate, rows in [(0.2, 1), (0.9, 1), (0.6, 4), (0.9, 4), (0.2, 16), (0.6, 16), (0.9, 16)]
        ),
    ],
)
def test_the_speed_is_close_to_that_of_the_best_fixed_depth(rate: float, rows: int) -> None:
    rates = [rate] * rows
    speeds = [warm(AdaptiveDepth(8), rates, CHEAP_DRAFT, seed).run(400).speed for seed in range(4)]
    assert mean(speeds) > 0.94 * best_fixed_speed(rates, CHEAP_DRAFT)


def test_forwards_of_several_draft_models_count() -> None:
    rates, costs, found = [0.6], Costs(draft=1e-3), list[float]()
    best = max(Load(Fixed(depth), rates, costs, num_models=4).run(250).speed for depth in range(9))
    for counted in (4, 1):
        load = Load(AdaptiveDepth(8, num_models=counted), rates, costs, jitter=0.1, num_models=4)
        load.run(WARM_UP)
        load.seconds, load.tokens = 0.0, 0
        found.append(load.run(800).speed)
    assert found[0] > 0.94 * best and found[0] > 1.02 * found[1], (found, best)


def test_a_controller_that_ignores_time_is_caught_by_these_tests() -> None:
    """Mutant: the most tokens per step, not per second."""

    class Timeless(StepCost):
        def seconds(
            self, rows: int, context: int, unread: int, forwards: Numbers, drafted: Numbers
        ) -> Numbers:
            return numpy.ones(numpy.broadcast(forwards, drafted).shape)

    controller = AdaptiveDepth(8)
    controller._cost = Timeless()
    rates = [0.75] * 64
    assert warm(controller, rates, CHEAP_DRAFT).run(100).speed < 0.9 * plain_speed(rates, CHEAP_DRAFT)


def test_requests_whose_drafts_are_accepted_get_longer_ones() -> None:
    load = warm(AdaptiveDepth(8), [0.9, 0.3] * 4, CHEAP_DRAFT).run(300)
    high = mean(depths[row] for depths in load.planned for row in (0, 2, 4, 6))
    low = mean(depths[row] for depths in load.planned for row in (1, 3, 5, 7))
    assert high > low + 1.5
    shared = max(Load(Fixed(depth), [0.9, 0.3] * 4, CHEAP_DRAFT).run(250).speed for depth in range(9))
    assert load.speed > shared


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2, 4, 8])
def test_trimmed_drafts_are_faster_where_draft_probabilities_tell_what_is_accepted(rows: int) -> None:
    speeds: dict[bool, float] = {}
    for trims in (False, True):
        load = Load(AdaptiveDepth(8, trims=trims), [0.7] * rows, CHEAP_DRAFT, draft_probs=(0.95, 0.2))
        load.run(WARM_UP)
        load.seconds, load.tokens = 0.0, 0
        speeds[trims] = load.run(600).speed
    assert speeds[True] > 1.02 * speeds[False], speeds


@pytest.mark.slow
def test_nothing_is_lost_where_draft_probabilities_tell_nothing() -> None:
    speeds = [
        warm(AdaptiveDepth(8, trims=trims), [0.7] * 4, CHEAP_DRAFT).run(600).speed for trims in (False, True)
    ]
    assert speeds[1] > 0.97 * speeds[0], speeds


def test_drafts_begin_again_when_load_falls() -> None:
    controller = AdaptiveDepth(8)
    assert mean_depth(warm(controller, [0.8] * 64, CHEAP_DRAFT).run(100)) < 0.1
    controller.release(range(64))
    load = Load(controller, [0.8], CHEAP_DRAFT).run(30)
    assert mean(depths[0] for depths in load.planned[-15:]) > 3


def test_drafts_begin_again_when_they_are_accepted_again() -> None:
    """A short draft is made now and then, in at most a hundredth of the time."""
    controller = AdaptiveDepth(8)
    rejected = warm(controller, [0.0] * 4, CHEAP_DRAFT).run(400)
    assert 0 < mean_depth(rejected) < 0.1
    assert rejected.speed > 0.95 * plain_speed([0.0] * 4, CHEAP_DRAFT)
    controller.release(range(4))
    accepted = Load(controller, [1.0] * 4, CHEAP_DRAFT).run(1500)
    assert mean(sum(depths) for depths in accepted.planned[-100:]) > 4


def test_tokens_that_the_draft_model_has_missed_delay_its_return() -> None:
    """A draft model that would have to read long texts first is used for fewer requests than one that has
    read them."""
    depths: list[int] = []
    for has_read in (True, False):
        controller = AdaptiveDepth(4)
        load = warm(controller, [0.5] * 4, Costs(draft=0.5e-3, per_token=1e-3))
        load._lengths, load.length = [2000] * 4, 4000
        controller._read = dict.fromkeys(range(4), 2000 if has_read else 1)
        controller._hold = 0  # choose anew
        depths.append(sum(load.run(1).planned[0]))
    assert depths[1] < depths[0]


@pytest.mark.parametrize("rows", [1, 4, slow(16), slow(32)])
def test_long_prompts_do_not_make_a_loaded_server_slower(rows: int) -> None:
    """Beside the reading of a prompt drafts look cheap, and the draft model has the whole prompt to read."""
    rates, costs = [0.75] * rows, Costs(draft=0.5e-3)
    load = Load(AdaptiveDepth(8), rates, costs, prompt=400, jitter=0.1).run(WARM_UP)
    load.seconds, load.tokens = 0.0, 0
    plain = Load(Fixed(0), rates, costs, prompt=400).run(1000).speed
    assert load.run(1000).speed > (1.2 if rows == 1 else 0.97) * plain


@pytest.mark.parametrize("prompt", [100, slow(200)])
def test_drafts_that_fit_into_the_padding_of_read_prompts_end_with_the_prompts(prompt: int) -> None:
    rates, costs, sizes = [0.8] * 16, Costs(per_token=2e-3), (1, 6, 11, 16, 32, 64, 96, 128)
    load = Load(AdaptiveDepth(8, sizes), rates, costs, prompt=prompt, length=64, sizes=sizes).run(WARM_UP)
    load.seconds, load.tokens = 0.0, 0
    plain = Load(Fixed(0), rates, costs, prompt=prompt, length=64, sizes=sizes).run(1000).speed
    assert load.run(1000).speed > 0.96 * plain


def test_rejected_tokens_end_a_test_of_the_tokens_after_them_are_not_counted() -> None:
    rates = AcceptanceRates()
    load = Load(Fixed(8), [0.7])
    for _ in range(2000):
        accepted = load._accepted([0.7] * 8)
        rates.record(0, 8, 8, min(accepted + 1, 8), accepted)
    assert rates.rate(1) == pytest.approx(0.7, abs=0.04)


def test_a_request_returns_to_the_rate_of_all_requests_while_it_has_no_drafts() -> None:
    rates = AcceptanceRates()
    for _ in range(50):
        rates.record(0, 4, 4, 1, 0)
        rates.record(1, 4, 4, 4, 4)
    low, shared = rates.rate(0), rates.rate(2)
    for _ in range(500):
        rates.skip(0)
    assert low < shared - 0.2 and rates.rate(0) == pytest.approx(shared, abs=0.02)


def test_a_lookup_that_finds_little_counts_as_the_share_that_it_drafts() -> None:
    rates = AcceptanceRates()
    for step in range(200):
        found = step % 4 == 0
        rates.record(0, 4, 4 if found else 0, 3 if found else 0, 2 if found else 0)
    assert rates.share_drafted(0) == pytest.approx(0.25, abs=0.06)
    assert rates.rate(0) > 0.55  # steps without a draft say nothing of acceptance


def test_a_linear_cost_finds_the_coefficients_in_spite_of_single_slow_measurements() -> None:
    cost = LinearCost(2)
    for repeat in range(9):
        for tokens in (1, 2, 4, 8, 16):
            seconds = 3e-3 + 0.5e-3 * tokens
            cost.record((1, tokens), seconds * (20 if repeat == 3 else 1))
    assert cost.update() and not cost.update()  # one more measurement does not change much
    cost.record((1, 1), 1.0)
    assert not cost.update()
    assert cast("list[float]", cost.coefficients.tolist()) == pytest.approx([3e-3, 0.5e-3], rel=1e-6)


def test_a_linear_cost_keeps_the_sizes_that_were_measured_last() -> None:
    cost, sizes = LinearCost(2), [(row, 2.0**power) for row in range(8) for power in range(3, 103)]
    assert len(sizes) > MAX_SIZES
    for size in sizes:
        cost.record(size, 1.0)
        cost.record((1, 2), 1.0)  # it comes again and again
    kept = {(row, rounded(tokens)) for row, tokens in sizes[1 - MAX_SIZES :]}
    assert cost._measured.keys() == {(1, 2), *kept}


def test_a_forward_costs_as_much_as_the_size_that_it_is_padded_to() -> None:
    drafted = numpy.array([0.0, 2.0, 3.0, 12.0, 13.0])
    for sizes, computed in (((1, 6, 11, 16), [6, 6, 11, 16, 17]), ((), [4, 6, 7, 16, 17])):
        cost = StepCost(sizes)
        cost._target.coefficients[1] = 1.0  # a second per token
        assert cost.seconds(4, 0, 0, numpy.zeros(5), drafted).tolist() == computed


def test_chains_of_one_row_have_padded_sizes_of_their_own() -> None:
    cost = StepCost((1, 6, 11, 16), (1, 6, 16))
    cost._target.coefficients[1] = 1.0  # a second per token
    drafted = numpy.array([0.0, 5.0, 6.0, 14.0])
    assert cost.verifying(1, 0, 0, drafted).tolist() == [1, 6, 16, 16]
    assert cost.verifying(2, 0, 0, drafted).tolist() == [6, 11, 11, 16]


def test_until_two_sizes_were_measured_forwards_are_assumed_to_grow_slowly() -> None:
    cost, drafted = StepCost((1, 6, 11)), numpy.array([0.0, 5.0, 10.0])
    growth = numpy.array([1 + ASSUMED_GROWTH * tokens for tokens in (1, 6, 11)])

    def measure(computed: int, seconds: float) -> None:
        for _ in range(MIN_TIMES):
            cost._new_steps.append(MeasuredStep(1, computed - 1, computed, 20, seconds, 0.0))
        cost.update()

    assert cost.verifying_or_assumed(1, 20, drafted) == pytest.approx(growth)
    measure(6, 2e-3)
    assert cost.verifying_or_assumed(1, 20, drafted) == pytest.approx(2e-3 * growth / growth[1])
    measure(1, 0.5e-3)  # far faster than what was assumed
    assert cost.verifying_or_assumed(1, 20, drafted)[:2] == pytest.approx([0.5e-3, 2e-3], rel=1e-3)


def test_depth_0_is_refused() -> None:
    with pytest.raises(ValueError, match="autoregressive"):
        AdaptiveDepth(0)
