"""The Gaussian process that proposes what to try next."""

from __future__ import annotations

import numpy as np
import pytest

from outpace.recipes.self_speculation.swift.gaussian_process import GaussianProcess, most_promising

RNG = np.random.default_rng(0)
POINTS, VALUES = RNG.random((12, 3)), RNG.random(12)


def test_the_gradient_is_that_of_the_bound() -> None:
    process, at = GaussianProcess(POINTS, VALUES, 1e-3), RNG.random((4, 3))
    bound, gradient = process.bound(at)
    for dimension in range(3):
        step = np.zeros(3)
        step[dimension] = 1e-6
        slope = (process.bound(at + step)[0] - process.bound(at - step)[0]) / 2e-6
        assert gradient[:, dimension] == pytest.approx(slope, rel=1e-4, abs=1e-6)
    assert bound.shape == (4,)


def test_without_noise_it_passes_through_the_values() -> None:
    process = GaussianProcess(POINTS, VALUES, 1e-9)
    scaled = (VALUES - VALUES.mean()) / VALUES.std()
    assert process.bound(POINTS)[0] == pytest.approx(scaled, abs=1e-2)


def test_it_finds_a_maximum_in_few_trials() -> None:
    best = np.array([0.8, 0.3])

    def value(point) -> float:
        return -float(((np.array(point) - best) ** 2).sum())

    points = [[0.1, 0.1], [0.9, 0.9], [0.5, 0.5]]
    values = [value(point) for point in points]
    for _ in range(12):
        points.append(most_promising(points, values, noise=1e-6).tolist())
        values.append(value(points[-1]))
    assert max(values) > -0.003
    assert all(0 <= each <= 1 for point in points for each in point)
    first, again = (most_promising(points, values, noise=1e-6) for _ in range(2))
    assert first.tolist() == again.tolist()


def test_equal_values_are_no_error() -> None:
    assert len(most_promising([[0.0, 1.0], [1.0, 0.0]], [0.5, 0.5], noise=1e-4)) == 2
