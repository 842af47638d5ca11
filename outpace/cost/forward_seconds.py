"""Seconds of forwards, as predictions take them, and a model of them that is fitted to a few measured
forwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy

from outpace.cost.cost_curve import CostCurve
from outpace.cost.linear_cost import non_negative_fit
from outpace.cost.padding import padded

Cell = tuple[int, int, int]  # tokens of all rows, rows, committed tokens of a row


class ForwardSeconds(Protocol):
    """Seconds of a forward over `tokens` tokens of all `rows` rows together, each of which has `context`
    committed tokens. `cost.roofline.Roofline` is another one."""

    def __call__(self, tokens: float, rows: int, context: float) -> float: ...


@dataclass(frozen=True)
class MeasuredForwards:
    """A curve over the number of tokens, measured with one row, plus so much for each further row and for
    each further token in the KV caches.

    Kernels change with the number of tokens, so the curve is interpolated; rows and caches cost what they
    read."""

    curve: CostCurve
    context: int  # committed tokens of the row with which the curve was measured
    row: float  # seconds of each row but the first
    cached: float  # seconds of each token in the KV caches, beyond those of the curve
    # padded sizes of forwards, as in core.contracts.Target: of all, and of those over one chain
    sizes: Sequence[int] = ()
    chain_sizes: Sequence[int] = ()

    def __call__(self, tokens: float, rows: int, context: float) -> float:
        sizes = self.chain_sizes if rows == 1 else self.sizes
        computed = float(padded(numpy.array([tokens]), numpy.array(sizes, dtype=float))[0])
        return max(
            0.0,
            self.curve(computed) + self.row * (rows - 1) + self.cached * (rows * context - self.context),
        )

    @staticmethod
    def fit(
        measured: Mapping[Cell, float], sizes: Sequence[int] = (), chain_sizes: Sequence[int] = ()
    ) -> MeasuredForwards:
        """The model that fits these seconds. The curve is that of the cells with one row and the longest
        context among these; relative errors of the others are least. ValueError without a cell with one
        row."""
        alone = [cell for cell in measured if cell[1] == 1]
        if not alone:
            raise ValueError("the curve of forwards is that of one row: measure some with one row")
        context = max(cell[2] for cell in alone)
        curve = CostCurve({tokens: measured[tokens, 1, context] for tokens, _, at in alone if at == context})
        bare = MeasuredForwards(curve, context, 0.0, 0.0, sizes, chain_sizes)
        others = [cell for cell in measured if cell[1:] != (1, context)]
        if not others:
            return bare
        quantities = numpy.array([[rows - 1, rows * at - context] for _, rows, at in others], float)
        seconds = numpy.array([measured[cell] for cell in others])
        bare_seconds = numpy.array([bare(tokens, rows, context / rows) for tokens, rows, _ in others])
        row, cached = non_negative_fit(quantities, seconds - bare_seconds, 1 / seconds)
        return MeasuredForwards(curve, context, float(row), float(cached), sizes, chain_sizes)
