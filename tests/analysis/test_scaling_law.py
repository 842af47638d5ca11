"""Log-linear laws: exact on exact points, and tested on a point that was not fitted."""

from __future__ import annotations

import math

import pytest

from outpace.analysis.scaling_law import LogLinear, fit, held_out


def test_a_law_is_found_from_points_on_it() -> None:
    law = fit([(x, 0.5 * math.log10(x) - 1.0) for x in (1e8, 1e9, 4e9, 1e10)])
    assert law.slope == pytest.approx(0.5) and law.intercept == pytest.approx(-1.0)
    assert law.r_squared == pytest.approx(1.0) and law(1e12) == pytest.approx(5.0)
    assert law(2e9) - law(1e9) == pytest.approx(0.5 * math.log10(2))  # each doubling adds as much
    assert law.needed(4.0) == pytest.approx(1e10)


def test_a_fit_by_hand() -> None:
    law = fit([(1, 1.0), (10, 2.0), (100, 2.0), (1000, 3.0)])
    assert (law.slope, law.intercept) == pytest.approx((0.6, 1.1))
    assert law.r_squared == pytest.approx(1 - 0.2 / 2.0)


def test_the_largest_point_is_held_out() -> None:
    points = [(100.0, 2.0), (1000.0, 3.5), (1.0, 0.0), (10.0, 1.0)]
    found = held_out(points)
    assert (found.x, found.measured) == (1000.0, 3.5)
    assert found.predicted == pytest.approx(3.0) and found.error == pytest.approx(-0.5)
    assert found.law.r_squared == pytest.approx(1.0) and fit(points).r_squared < 1


def test_laws_that_do_not_rise_never_reach_more() -> None:
    assert LogLinear(0.0, 3.0, 1.0).needed(4.0) == math.inf
    assert LogLinear(-1.0, 3.0, 1.0).needed(4.0) == math.inf
    assert LogLinear(1e-3, 3.0, 1.0).needed(4.0) == math.inf  # 10 ** 1000
    assert fit([(1, 2.0), (2, 2.0)]) == LogLinear(0.0, 2.0, 1.0)


@pytest.mark.parametrize(
    ("points", "sentence"),
    [
        ([], "two different x"),
        ([(3, 1.0), (3, 2.0)], "two different x"),
        ([(0, 1.0), (3, 2.0)], "positive number"),
        ([(-1, 1.0), (3, 2.0)], "positive number"),
        ([(math.nan, 1.0), (3, 2.0)], "positive number"),
        ([(1, math.nan), (3, 2.0)], "not a finite number"),
    ],
)
def test_points_without_a_law_are_refused(points, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fit(points)


def test_two_points_test_nothing() -> None:
    with pytest.raises(ValueError, match="three different x"):
        held_out([(1, 1.0), (2, 2.0), (2, 2.1)])
