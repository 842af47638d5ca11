"""Bootstrap intervals and cost curves."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import pytest

from outpace.bench.measure.bootstrap import Interval, median_interval
from outpace.bench.measure.forward_cost import IN_A_ROW, measure_forwards
from outpace.bench.measure.means import mean_interval
from outpace.core.contracts import Scores, TokenTree
from outpace.cost.cost_curve import CostCurve
from outpace.models.table import TableTarget


def test_an_interval_holds_its_median_and_is_the_same_every_time() -> None:
    groups = [[1.0, 1.2], [1.4], [0.9, 1.1, 1.3]]
    found = median_interval(groups, seed=1)
    assert found == median_interval(groups, seed=1)
    assert found.median == pytest.approx(1.1)  # of 1.1, 1.4 and 1.1, the medians of the prompts
    assert 1.1 <= found.low <= found.median <= found.high <= 1.4


def test_equal_values_have_no_spread_and_no_values_have_no_median() -> None:
    found = median_interval([[2.0, 2.0], [2.0], [2.0]])
    assert (found.low, found.median, found.high) == (2.0, 2.0, 2.0)
    assert math.isnan(median_interval([[], []]).median)
    two = median_interval([[1.0], [3.0]])  # too few prompts for an interval
    assert two.median == 2.0 and not two.known


def test_prompts_that_differ_widen_the_interval_more_than_rounds_that_differ() -> None:
    between = median_interval([[1.0] * 4, [2.0] * 4, [3.0] * 4])
    within = median_interval([[1.9, 2.0, 2.0, 2.1]] * 3)
    assert between.high - between.low > within.high - within.low


def test_intervals_are_of_95_percent_and_of_the_statistic() -> None:
    mean = mean_interval([[float(value)] for value in range(100)])
    # 1.96 standard errors of 2.89 to either side
    assert (mean.low, mean.high) == pytest.approx((49.5 - 5.66, 49.5 + 5.66), abs=0.4)
    # that half of the resampled prompts are the last one has a probability of 0.1 %
    assert median_interval([*[[1.0]] * 8, [1000.0]]) == Interval(1.0, 1.0, 1.0)


def test_a_mean_weighs_every_value_alike_also_in_resampled_prompts() -> None:
    even = mean_interval([[2.0], [2.0] * 5, [2.0] * 9])
    assert (even.low, even.mean, even.high) == (2.0, 2.0, 2.0)
    # half of the prompts have nine times as many values as the others
    uneven = mean_interval([[0.0], [1.0] * 9] * 10)
    assert uneven.mean == pytest.approx(0.9) and 0.7 < uneven.low < 0.9 < uneven.high < 1


def test_a_cost_curve_never_falls_and_goes_through_its_points() -> None:
    curve = CostCurve({1: 1.0, 2: 1.5, 4: 2.0, 8: 4.0})
    assert [curve(q) for q in (1, 2, 3, 4, 6, 8)] == [1.0, 1.5, 1.75, 2.0, 3.0, 4.0]
    assert curve(16) == 8.0  # the last line, continued
    noisy = CostCurve({1: 1.0, 2: 0.8, 4: 1.4, 8: 1.3, 16: 2.0})
    values = [noisy(q) for q in range(1, 33)]
    assert values == sorted(values)


def test_neighbours_out_of_order_take_their_mean() -> None:
    assert CostCurve({1: 1.0, 2: 3.0, 4: 2.0, 8: 4.0}).seconds == [1.0, 2.5, 2.5, 4.0]
    assert CostCurve({1: 3.0, 2: 2.0, 3: 1.0}).seconds == [2.0, 2.0, 2.0]


def test_a_curve_of_one_point_is_flat() -> None:
    assert CostCurve({1: 0.5})(9) == 0.5
    with pytest.raises(ValueError, match="at least one point"):
        CostCurve({})


def test_costs_are_measured_for_every_target_and_leave_it_usable() -> None:
    targets = {"a": TableTarget(4), "b": TableTarget(4, seed=1)}
    found = measure_forwards(targets, length=6, rows=2, sizes=(1, 2, 4), repeats=3)
    assert set(found) == {"a", "b"}
    for timings in found.values():
        assert timings.curve.sizes == [1, 2, 4]
        assert timings.curve.seconds == sorted(timings.curve.seconds) and timings.curve.seconds[0] > 0


class Preparing(TableTarget):
    """Takes a second a node, and a hundred more where the last forward was over another number of nodes."""

    now, read, met = 0.0, 0, ()

    def score(self, tree: TokenTree, *arguments: Any, **options: Any) -> Scores:
        self.now += len(tree) + 100 * (len(tree) != self.read)
        self.read, self.met = len(tree), (*self.met, len(tree))
        return super().score(tree, *arguments, **options)


def test_sizes_come_a_few_in_a_row_and_what_a_change_costs_stands_apart() -> None:
    target, other = Preparing(4), TableTarget(4)
    both = {"slow": target, "other": other}
    timings = measure_forwards(both, length=6, sizes=(1, 4, 8), repeats=4, clock=lambda: target.now)["slow"]
    assert timings.curve.seconds == [1, 4, 8]
    assert timings.again == {size: [size] * (4 * (IN_A_ROW - 1)) for size in (1, 4, 8)}
    assert timings.changed == {1: [101] * 4, 4: [104] * 4, 8: [108] * 4}
    runs = [(size, len(list(same))) for size, same in groupby(target.met)]
    assert {length for _, length in runs[3:]} == {IN_A_ROW}  # after each of them once
    assert sorted(size for size, _ in runs[3:]) == [1] * 4 + [4] * 4 + [8] * 4


def test_a_measurement_that_takes_long_ends_after_all_sizes() -> None:
    target = Preparing(4)
    measure_forwards({"slow": target}, length=6, sizes=(1, 4), repeats=4, most_seconds=0)
    assert len(target.met) == 2 + 2 * IN_A_ROW


def test_a_mean_of_differences_and_its_interval() -> None:
    same = mean_interval([[0.5] * 4, [0.5] * 2, [0.5]])
    assert (same.mean, same.low, same.high) == (0.5, 0.5, 0.5)
    spread = mean_interval([[0.0], [1.0]] * 50)
    assert spread.mean == 0.5 and 0.38 < spread.low < 0.45 and 0.55 < spread.high < 0.62
    apart = mean_interval([[0.0] * 50, [1.0] * 50, [0.0] * 50])  # trees of one prompt are alike
    assert (apart.low, apart.high) == (0.0, 1.0)
    two = mean_interval([[0.0], [1.0]])
    assert two.mean == 0.5 and two.low != two.low  # no interval with fewer than three prompts
    nothing = mean_interval([])
    assert nothing.mean != nothing.mean
