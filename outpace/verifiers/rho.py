"""The scale of k-sequential selection (Sun et al. 2023): the smallest under which no token is overdrawn.

Letters: R nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1, log, log1p

import torch
from torch import Tensor

PATIENCE = 8  # points that are not valid before the largest rho is tried
NARROW = 1e-15  # of the bracket of log rho: below it, rounding decides


def any_accepted(one: float, k: int) -> float:
    """Chance that at least one of k draws is accepted, when each is with chance `one`."""
    return -expm1(k * log1p(-one)) if one < 1 else 1.0


def least_rho(
    p: Tensor, q: Tensor, num: Sequence[int], tolerance: float = 0.0
) -> list[tuple[float, float]]:  # (R, V), (R, V), (R,) -> (R,)
    """The smallest valid rho of each node, from above, and the sum of min(p, rho q): rho is valid where that
    sum is at least the chance that one of the draws is accepted.

    The difference grows with rho. Of two valid rho the larger accepts less by no more than the larger's
    difference, so the search ends at a difference of `tolerance`.
    """
    enough = max(tolerance, 8 * torch.finfo(p.dtype).eps)
    scratch = torch.empty_like(p)
    overlaps = _overlap(p, q, [1.0] * len(num), scratch)
    searches = [_Search(overlap, k, enough) for overlap, k in zip(overlaps, num, strict=True)]
    while any(search.found is None for search in searches):
        tried = [search.next() for search in searches]
        for search, overlap in zip(searches, _overlap(p, q, tried, scratch), strict=True):
            search.tell(overlap)
    return [search.found for search in searches if search.found is not None]


class _Search:
    """For one node's rho: inverse interpolation through the last points, in log rho, kept inside a bracket.

    Every point costs a sum over the vocabulary, of which this needs about five where bisection needs thirty.
    """

    def __init__(self, overlap: float, k: int, enough: float) -> None:
        self._k, self._enough = k, enough
        self._low, self._high = 0.0, log(k)  # of log rho; k is always valid
        value = _excess(1.0, overlap, k)
        self.found = (1.0, overlap) if k == 1 or value >= 0 else None  # rho and its sum
        self._valid: tuple[float, float] | None = None
        # the sum at rho is at most rho times that at 1, and at most 1: good enough for the end until there
        # are points
        most = min(1.0, k * overlap)
        self._points = [(self._high, _excess(float(k), most, k)), (0.0, value)]
        self._widths = [self._high]  # of the bracket, after each point
        self._at = 1.0

    def next(self) -> float:
        """The rho to sum at."""
        if self.found:
            return self.found[0]
        if self._valid is None and (self._points[0][1] <= self._enough or len(self._widths) > PATIENCE):
            self._at = float(self._k)
            return self._at
        at = _interpolated(self._points[-3:], self._enough / 2)
        stuck = len(self._widths) > 3 and self._widths[-1] > self._widths[-4] / 2
        if stuck or at is None or not self._low < at < self._high:
            at = (self._low + self._high) / 2
        self._at = exp(at)
        return self._at

    def tell(self, overlap: float) -> None:
        """What the sum is there."""
        if self.found:  # so that a row does not depend on its batch
            return
        value = _excess(self._at, overlap, self._k)
        if value >= 0 or self._at == self._k:
            self._valid, self._high = (self._at, overlap), log(self._at)
        else:
            self._low = log(self._at)
        self._points.append((log(self._at), value))
        self._widths.append(self._high - self._low)
        near = self._valid is not None and self._valid[0] == self._at and value <= self._enough
        if near or self._widths[-1] <= NARROW:
            self.found = self._valid


def _interpolated(points: Sequence[tuple[float, float]], aim: float) -> float | None:
    """Where a curve through these points, turned on its side, has this value."""
    if len({value for _, value in points}) < len(points):
        return None
    found = 0.0
    for one, (at, value) in enumerate(points):
        for other, (_, of_other) in enumerate(points):
            if other != one:
                at *= (aim - of_other) / (value - of_other)
        found += at
    return found


def _excess(rho: float, overlap: float, k: int) -> float:
    return overlap - any_accepted(overlap / rho, k)


def _overlap(p: Tensor, q: Tensor, rho: Sequence[float], scratch: Tensor) -> list[float]:
    """Sum of min(p, rho q) in each row; the same (R, V) of scratch for every rho saves asking for new
    memory."""
    scaled = torch.mul(q, rho[0] if len(rho) == 1 else p.new_tensor(rho)[:, None], out=scratch)
    return torch.minimum(p, scaled, out=scratch).sum(-1).clamp_(max=1).tolist()
