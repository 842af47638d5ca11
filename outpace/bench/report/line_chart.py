"""Line charts of results over a setting, drawn by matplotlib (extra `report`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outpace.bench.report.plot import TEXT, WIDTH, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import LineStyleType

PANEL_HEIGHT = 1.7  # inches
HEADROOM = 1.08  # end of the y axis divided by the largest value


@dataclass(frozen=True)
class Line:
    """Points (x, y) that a line connects; `dashes`: a line style of matplotlib."""

    points: Sequence[tuple[float, float]]
    colour: str
    dashes: LineStyleType = "-"


@dataclass(frozen=True)
class LinePanel:
    """A titled group of lines with one pair of axes; the y axis begins at 0."""

    title: str
    lines: Sequence[Line]
    axis_label: str  # of the x axis


def line_chart(
    panels: Sequence[Sequence[LinePanel]], *, colours: Mapping[str, str], dashes: Mapping[str, LineStyleType]
) -> Figure:
    """A figure with a row of panels for each inner sequence, all of one length, and a legend that names
    colours and line styles."""
    with style():
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        width, height = WIDTH * len(panels[0]), PANEL_HEIGHT * len(panels) + 0.6
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(len(panels), len(panels[0]), squeeze=False, sharex="col")
        for row, drawn in zip(panels, axes, strict=True):
            for panel, each in zip(row, drawn, strict=True):
                _draw(each, panel)
        for each, panel in zip(axes[-1], panels[-1], strict=True):
            each.set_xlabel(panel.axis_label)
        named = [Line2D([], [], color=colour, label=name) for name, colour in colours.items()]
        kinds = [Line2D([], [], color=TEXT, linestyle=kind, label=name) for name, kind in dashes.items()]
        figure.legend(handles=named, loc="outside upper left", ncols=3, frameon=False)
        figure.legend(handles=kinds, loc="outside upper right", ncols=3, frameon=False)
    figure.patch.set_alpha(0)
    return figure


def _draw(axes: Axes, panel: LinePanel) -> None:
    axes.patch.set_alpha(0)
    axes.set_title(panel.title, loc="left")
    for line in panel.lines:
        xs, ys = [x for x, _ in line.points], [y for _, y in line.points]
        axes.plot(xs, ys, linestyle=line.dashes, color=line.colour, marker="o", markersize=3, linewidth=1.4)
    axes.set_xticks(sorted({x for line in panel.lines for x, _ in line.points}))
    axes.set_ylim(0, HEADROOM * max((y for line in panel.lines for _, y in line.points), default=1.0) or 1.0)
