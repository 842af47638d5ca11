"""The scale rho of k-sequential selection (Sun et al. 2023): the smallest that keeps the selection exact.

Letters: R nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1, log, log1p

import torch
from torch import Tensor

PATIENCE = 8  # evaluations without a valid rho, after which k, the largest, is tried
NARROW = 1e-15  # width of the bracket of log rho at which the search ends: below it, rounding decides


def any_accepted(one: float, k: int) -> float:
    """Probability that at least one of k independent draws is accepted, each with probability `one`."""
    return -expm1(k * log1p(-one)) if one < 1 else 1.0


def least_rho(
    p: Tensor, q: Tensor, num: Sequence[int], tolerance: float = 0.0
) -> list[tuple[float, float]]:  # (R, V), (R, V), (R,) -> (R,)
    """Per node a valid rho close to the smallest one, and its sum over the vocabulary of min(p, rho q).

    A rho is valid if that sum is at least the probability that one of the `num` draws is accepted. The excess
    of the sum over this probability grows with rho, and bounds the acceptance probability lost against the
    smallest valid rho; the search ends at a valid rho with an excess of at most `tolerance`.
    """
    enough = max(tolerance, 8 * torch.finfo(p.dtype).eps)
    scratch = torch.empty_like(p)
    overlaps = _overlap(p, q, [1.0] * len(num), scratch)
    searches = [_Search(overlap, k, enough) for overlap, k in zip(overlaps, num, strict=True)]
    while any(search.found is None for search in searches):
        tried = [search.next() for search in searches]
        for search, overlap in zip(searches, _overlap(p, q, tried, scratch), strict=True):
            search.record(overlap)
    return [search.found for search in searches if search.found is not None]


class _Search:
    """Root finder for one node's rho: inverse interpolation in log rho through the last three evaluations,
    with bisection where it leaves the bracket or converges slowly.

    Each evaluation costs a sum over the vocabulary; this needs about 5 of them, bisection alone about 30.
    """

    def __init__(self, overlap: float, k: int, enough: float) -> None:
        self._k, self._enough = k, enough
        self._low, self._high = 0.0, log(k)  # bracket of log rho; rho = k is always valid
        value = _excess(1.0, overlap, k)
        self.found = (1.0, overlap) if k == 1 or value >= 0 else None  # (rho, sum)
        self._valid: tuple[float, float] | None = None  # smallest valid (rho, sum) evaluated so far
        # the sum at rho = k is at most k times that at rho = 1, and at most 1: this bound replaces an
        # evaluation at k in the first interpolation
        upper_bound = min(1.0, k * overlap)
        self._points = [(self._high, _excess(float(k), upper_bound, k)), (0.0, value)]
        self._widths = [self._high]  # width of the bracket after each evaluation
        self._at = 1.0

    def next(self) -> float:
        """The rho at which the sum of min(p, rho q) is needed next; the result once the search has ended."""
        if self.found:
            return self.found[0]
        if self._valid is None and (self._points[0][1] <= self._enough or len(self._widths) > PATIENCE):
            self._at = float(self._k)
            return self._at
        log_rho = _interpolated(self._points[-3:], self._enough / 2)
        stuck = len(self._widths) > 3 and self._widths[-1] > self._widths[-4] / 2
        if stuck or log_rho is None or not self._low < log_rho < self._high:
            log_rho = (self._low + self._high) / 2
        self._at = exp(log_rho)
        return self._at

    def record(self, overlap: float) -> None:
        """Record `overlap`, the sum of min(p, rho q) at the rho that `next` returned."""
        if self.found:  # searches of other rows may take longer: this result must not depend on them
            return
        value = _excess(self._at, overlap, self._k)
        if value >= 0 or self._at == self._k:
            self._valid, self._high = (self._at, overlap), log(self._at)
        else:
            self._low = log(self._at)
        self._points.append((log(self._at), value))
        self._widths.append(self._high - self._low)
        converged = self._valid is not None and self._valid[0] == self._at and value <= self._enough
        if converged or self._widths[-1] <= NARROW:
            self.found = self._valid


def _interpolated(points: Sequence[tuple[float, float]], aim: float) -> float | None:
    """Inverse Lagrange interpolation through points (x, value): the x at which the value is `aim`. None if
    two points have the same value."""
    if len({value for _, value in points}) < len(points):
        return None
    root = 0.0
    for one, (log_rho, value) in enumerate(points):
        for other, (_, of_other) in enumerate(points):
            if other != one:
                log_rho *= (aim - of_other) / (value - of_other)
        root += log_rho
    return root


def _excess(rho: float, overlap: float, k: int) -> float:
    return overlap - any_accepted(overlap / rho, k)


def _overlap(p: Tensor, q: Tensor, rho: Sequence[float], scratch: Tensor) -> list[float]:
    """Sum of min(p, rho q) in each of the R rows, at most 1. `scratch` (R, V) is overwritten, which saves an
    allocation per evaluation."""
    scaled = torch.mul(q, rho[0] if len(rho) == 1 else p.new_tensor(rho)[:, None], out=scratch)
    return torch.minimum(p, scaled, out=scratch).sum(-1).clamp_(max=1).tolist()
