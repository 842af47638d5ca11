"""Seconds of a repeated operation as a linear function of its size, fitted to recent measurements."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log2
from statistics import median

import numpy
from numpy.typing import NDArray
from scipy.optimize import nnls

Numbers = NDArray[numpy.float64]  # of any shape

NUM_TIMES = 7  # measurements of one size of which the median is taken
FIT_AFTER, MAX_RECORDS = 0.1, 32  # share of new measurements that a fit waits for, and most of them
HALF_LIFE = 256  # measurements after which one counts half as much as a new one
# sizes that are fitted, those measured last: every fit goes through all of them, and in a server, where
# batches and texts vary, there are ever more
MAX_SIZES = 512


@dataclass
class Measured:
    """The last measurements of one size."""

    quantities: Sequence[float]
    times: deque[float] = field(default_factory=lambda: deque[float](maxlen=NUM_TIMES))  # seconds
    at: int = 0  # number of measurements of all sizes when this one was last measured
    typical: float = 0.0  # median of `times`


class LinearCost:
    """Seconds as a sum of quantities, such as tokens or forwards, times non-negative coefficients.

    Of similar quantities only the median of the last times counts: a size that is measured often does not
    outweigh the others. The fit minimises relative errors.
    """

    def __init__(self, num_quantities: int) -> None:
        self.coefficients = numpy.zeros(num_quantities)
        self._num_records = self._next_fit = 0
        self._measured: dict[tuple[int, ...], Measured] = {}  # by rounded quantities

    def record(self, quantities: Sequence[float], seconds: float) -> None:
        """Add a measurement."""
        self._num_records += 1
        size = tuple([rounded(each) for each in quantities])
        if size not in self._measured and len(self._measured) == MAX_SIZES:
            del self._measured[min(self._measured, key=lambda each: self._measured[each].at)]
        cell = self._measured.setdefault(size, Measured(quantities))
        cell.quantities, cell.at = quantities, self._num_records
        cell.times.append(seconds)
        cell.typical = median(cell.times)  # not in every fit: there are hundreds of sizes

    def update(self) -> bool:
        """Fit the coefficients anew if enough measurements were added since the last fit; returns whether
        they were fitted."""
        if self._num_records < self._next_fit or not self._measured:
            return False
        self._next_fit = self._num_records + max(1, min(MAX_RECORDS, int(FIT_AFTER * self._num_records)))
        self._fit()
        return True

    def _fit(self) -> None:
        cells = self._measured.values()
        ages = numpy.array([self._num_records - each.at for each in cells])
        times = numpy.array([max(each.typical, 1e-9) for each in cells])
        weights = 1 / (1 + ages / HALF_LIFE)
        quantities = numpy.array([each.quantities for each in cells])
        self.coefficients = non_negative_fit(quantities, times, weights / times)


def non_negative_fit(quantities: Numbers, values: Numbers, weights: Numbers) -> Numbers:  # (M, K), (M,), (M,)
    """(K,) coefficients, none below 0, with which the quantities come closest to the values: least squares of
    the weighted differences."""
    weighted = quantities * weights[:, None]
    scale = numpy.maximum(numpy.abs(weighted).max(0), 1e-30)
    return nnls(weighted / scale, values * weights)[0] / scale


def rounded(quantity: float) -> int:
    """An integer that is the same for similar quantities, by which measurements are grouped. Below 8 it is
    the quantity itself; above, quantities that differ by less than about a fifth may share it."""
    return int(quantity) if quantity < 8 else round(4 * log2(quantity)) - 4
