"""A Gaussian process that proposes the next point to try, in the search for the largest value of a function.

Letters: N points that were tried, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky
from scipy.optimize import minimize
from scipy.stats.qmc import Sobol

Floats = NDArray[np.float64]
KAPPA = 2.5  # standard deviations above the mean: the larger, the more is tried where little is known
LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)  # length scales that are compared, relative to the cube's diagonal
NUM_STARTS, NUM_POINTS = 4, 512  # points from which the bound is climbed, and among which they are selected


class GaussianProcess:
    """Regression on points of the unit cube with a Matérn kernel of smoothness 5/2, whose length scale is the
    most probable of a few. Values are standardised."""

    def __init__(self, points: Floats, values: Floats, noise: float) -> None:  # (N, D), (N,)
        """`noise`: variance of the error of a value, relative to the variance of the values."""
        self._points, spread = points, values.std()
        scaled = (values - values.mean()) / (spread if spread > 0 else 1.0)
        best = -np.inf
        for length in np.array(LENGTHS) * sqrt(points.shape[1]):
            kernel = _kernel(points, points, length)[0] + noise * np.eye(len(points))
            lower = cholesky(kernel, lower=True)
            weights = cho_solve((lower, True), scaled)
            likelihood = -0.5 * scaled @ weights - np.log(np.diag(lower)).sum()
            if likelihood > best:
                best, self._length, self._lower, self._weights = likelihood, length, lower, weights

    def bound(self, at: Floats) -> tuple[Floats, Floats]:  # (M, D) -> (M,), (M, D)
        """Mean plus KAPPA standard deviations at these points, and its gradient."""
        kernel, slope = _kernel(at, self._points, self._length)  # (M, N) each
        solved = cho_solve((self._lower, True), kernel.T).T
        deviation = np.sqrt(np.maximum(1 - (kernel * solved).sum(1), 1e-12))
        # d kernel[m, n] / d at[m] = slope[m, n] * (at[m] - points[n])
        weights = slope * (self._weights - KAPPA * solved / deviation[:, None])
        gradient = weights.sum(1)[:, None] * at - weights @ self._points
        return kernel @ self._weights + KAPPA * deviation, gradient


def most_promising(
    points: Sequence[Sequence[float]], values: Sequence[float], *, noise: float
) -> Floats:  # (N, D), (N,) -> (D,)
    """The point of the unit cube with the largest upper bound (UCB) given the values at points that were
    tried. It follows from these alone."""
    tried = np.array(points, np.float64)
    process = GaussianProcess(tried, np.array(values, np.float64), noise)
    best = tried[np.argsort(values)[-NUM_STARTS:]]
    spread = Sobol(tried.shape[1], scramble=False).random(NUM_POINTS)
    starts = np.concatenate((spread, best))
    starts = starts[np.argsort(-process.bound(starts)[0])[:NUM_STARTS]]

    def falling(at: Floats) -> tuple[float, Floats]:
        bound, gradient = process.bound(at[None])
        return -float(bound[0]), -gradient[0]

    limits = [(0.0, 1.0)] * tried.shape[1]
    climbed = [minimize(falling, start, jac=True, method="L-BFGS-B", bounds=limits) for start in starts]
    return np.array(min(climbed, key=lambda each: each.fun).x, np.float64)


def _kernel(one: Floats, other: Floats, length: float) -> tuple[Floats, Floats]:  # (M, D), (N, D)
    """The kernel (M, N), and its derivative by a point divided by the difference of the two points."""
    squares = (one**2).sum(1)[:, None] + (other**2).sum(1) - 2 * one @ other.T
    distance = np.sqrt(5 * np.maximum(squares, 0)) / length
    decay = np.exp(-distance)
    kernel = (1 + distance + distance**2 / 3) * decay
    return kernel, -5 / (3 * length**2) * (1 + distance) * decay
