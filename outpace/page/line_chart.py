"""Lines over a logarithmic axis, as positions in percent, which `lines.html` draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2

COLOURS = ("#3a7d44", "#2b6cb0", "#b7791f", "#8e44ad", "#0f766e", "#7a828c")
DASHES = ("", "7 4", "2 3", "10 3 2 3", "4 4", "1 4")  # so that lines differ without colours too
MOST_LABELS = 8  # of an axis


@dataclass(frozen=True)
class Line:
    """A named line: points (x, y) in percent of the plot, from its lower left corner."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: str
    dash: str

    @property
    def path(self) -> str:
        """The points as those of an SVG polyline, whose y axis points down."""
        return " ".join(f"{x:.2f},{100 - y:.2f}" for x, y in self.points)


@dataclass(frozen=True)
class LineChart:
    """Lines with the labels of both axes: (percent, text)."""

    lines: Sequence[Line]
    x_labels: Sequence[tuple[float, str]]
    y_labels: Sequence[tuple[float, str]]
    reference: float  # percent of the height at which y is 1


def line_chart(series: Mapping[str, Mapping[int, float]]) -> LineChart:
    """The chart of series of values from 0 by whole numbers from 1. ValueError without a value."""
    values = [value for each in series.values() for value in each.values()]
    if not values:
        raise ValueError("a chart needs at least one value")
    sizes = sorted({size for each in series.values() for size in each})
    width = log2(sizes[-1] / sizes[0]) or 1.0
    top = max(1.5, *values)
    step = next(step for step in (0.5, 1, 2, 5, 10, 20, 50, top) if top / step <= 6)
    top = step * ceil(top / step)

    def across(size: int) -> float:
        return 100 * log2(size / sizes[0]) / width if len(sizes) > 1 else 50.0

    lines = [
        Line(
            label,
            [(across(size), 100 * value / top) for size, value in sorted(each.items())],
            COLOURS[index % len(COLOURS)],
            DASHES[index % len(DASHES)],
        )
        for index, (label, each) in enumerate(series.items())
    ]
    every = ceil(len(sizes) / MOST_LABELS)
    shown = sizes[::every]
    return LineChart(
        lines,
        [(across(size), str(size)) for size in shown],
        [(100 * step * index / top, f"{step * index:g}x") for index in range(round(top / step) + 1)],
        100 / top,
    )
