"""Lines as positions in percent, which `lines.html` draws: over a logarithmic axis of whole numbers, or
through points anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10

COLOURS = ("#3a7d44", "#2b6cb0", "#b7791f", "#8e44ad", "#0f766e", "#7a828c")
DASHES = ("", "7 4", "2 3", "10 3 2 3", "4 4", "1 4")  # so that lines differ without colours too
MOST_LABELS = 8  # of an axis
STEPS = (0.2, 0.5, 1, 2)  # between two labels, times the largest power of ten below the width

Point = tuple[float, float, str]  # x, y, and what is written beside it; "": nothing


@dataclass(frozen=True)
class Line:
    """A named line: points (x, y) in percent of the plot, from its lower left corner."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: str
    dash: str
    notes: Sequence[tuple[float, float, str]] = ()  # texts beside points, which are in percent too

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
    top, y_labels = _upwards(values)

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
        y_labels,
        100 / top,
    )


def point_chart(series: Mapping[str, Sequence[Point]]) -> LineChart:
    """The chart of series of points, each joined in its order. y counts from 0, and x has 0 on its axis.
    ValueError without a point."""
    points = [point for each in series.values() for point in each]
    if not points:
        raise ValueError("a chart needs at least one point")
    top, y_labels = _upwards([y for _, y, _ in points])
    left, right = min(0.0, *(x for x, _, _ in points)), max(0.0, *(x for x, _, _ in points))
    step = _step(right - left)
    first, last = floor(left / step - 1e-9) if left else 0, max(ceil(right / step - 1e-9), 0)
    last = max(last, first + 1)

    def across(x: float) -> float:
        return 100 * (x / step - first) / (last - first)

    lines = [
        Line(
            label,
            [(across(x), 100 * y / top) for x, y, _ in each],
            COLOURS[index % len(COLOURS)],
            DASHES[index % len(DASHES)],
            [(across(x), 100 * y / top, note) for x, y, note in each if note],
        )
        for index, (label, each) in enumerate(series.items())
    ]
    x_labels = [(across(step * index), f"{step * index:g}") for index in range(first, last + 1)]
    return LineChart(lines, x_labels, y_labels, 100 / top)


def _upwards(values: Sequence[float]) -> tuple[float, list[tuple[float, str]]]:
    """The largest value of a y axis from 0, and the axis' labels."""
    top = max(1.5, *values)
    step = next(step for step in (0.5, 1, 2, 5, 10, 20, 50, top) if top / step <= 6)
    top = step * ceil(top / step)
    return top, [(100 * step * index / top, f"{step * index:g}x") for index in range(round(top / step) + 1)]


def _step(width: float) -> float:
    """The distance of two labels of an axis of this width."""
    if width <= 0:
        return 1.0
    power = 10.0 ** floor(log10(width))
    return next(step * power for step in STEPS if width / (step * power) <= MOST_LABELS)
