"""Charts of results, drawn by matplotlib: horizontal bars with 95 % intervals, and lines over a stream.

Text and axes are grey, which is legible on light and dark pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REFERENCE = "#c8553d"  # colour of the line at a reference value
OURS, PEER = "#3a7d44", "#c3c9d1"
LINES = ("#3a7d44", "#c8553d", "#4a7fb5", "#b58a2c", "#8459a8", "#8a949e")
TEXT = (
    "#7a828c"  # contrast ratio of at least 3.9 to white and to the dark pages of GitHub and the documentation
)
WIDTH = 5.6  # inches; scaled to a phone's 400 pixels, a 9-point label is 9 pixels high
SHORT = 100  # from here on numbers beside bars have no decimals
BAR_HEIGHT = 0.27  # inches per bar
STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["system-ui", "Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 9.5,
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": TEXT,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
}


@dataclass(frozen=True)
class Bar:
    """A labelled value with its interval."""

    label: str
    value: float
    low: float
    high: float
    colour: str = OURS


@dataclass(frozen=True)
class Panel:
    """A titled group of bars; the panels of a chart share the x axis."""

    title: str
    bars: Sequence[Bar]


def bar_chart(panels: Sequence[Panel], axis_label: str, *, reference: float | None = None) -> Figure:
    """A figure with the panels stacked vertically and a dotted vertical line at `reference`."""
    with style():
        from matplotlib.figure import Figure

        heights = [BAR_HEIGHT * len(panel.bars) + 0.35 for panel in panels]
        figure = Figure(figsize=(WIDTH, sum(heights) + 0.5), layout="constrained")
        axes = figure.subplots(len(panels), 1, height_ratios=heights, sharex=True, squeeze=False)[:, 0]
        for each, panel in zip(axes, panels, strict=True):
            _draw(each, panel, reference)
        axes[-1].set_xlabel(axis_label)
    figure.patch.set_alpha(0)
    return figure


def _draw(axes: Axes, panel: Panel, reference: float | None) -> None:
    positions = range(len(panel.bars))
    axes.patch.set_alpha(0)
    axes.set_title(panel.title, loc="left")
    for position, bar in zip(positions, panel.bars, strict=True):
        axes.barh(position, bar.value, height=0.72, color=bar.colour)
        axes.plot([bar.low, bar.high], [position, position], color=TEXT, linewidth=1.6, solid_capstyle="butt")
        note = f"{bar.value:.2f}" if bar.value < SHORT else f"{bar.value:.0f}"
        axes.annotate(
            note, (max(bar.high, bar.value), position), xytext=(4, 0), textcoords="offset points", va="center"
        )
    if reference is not None:
        axes.axvline(reference, color=REFERENCE, linestyle=":", linewidth=1.2)
    axes.set_yticks(list(positions), [bar.label for bar in panel.bars])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.invert_yaxis()
    widest = max((max(bar.high, bar.value) for bar in panel.bars), default=1.0)
    axes.set_xlim(0, max(axes.get_xlim()[1], 1.18 * widest))


def line_chart(
    series: Mapping[str, Sequence[tuple[float, float]]],
    axis_labels: tuple[str, str],
    *,
    mark: float | None = None,
) -> Figure:
    """A figure with one line for each name, and a dotted vertical line at `mark` of the x axis."""
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
        axes = figure.subplots()
        axes.patch.set_alpha(0)
        for place, (name, points) in enumerate(series.items()):
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=LINES[place % len(LINES)], linewidth=1.8, label=name)
        if mark is not None:
            axes.axvline(mark, color=TEXT, linestyle=":", linewidth=1.2)
        axes.set_xlabel(axis_labels[0])
        axes.set_ylabel(axis_labels[1])
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=9, ncols=2)
    figure.patch.set_alpha(0)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write the figure to `path`, whose suffix selects the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with style({"svg.hashsalt": path.stem}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    if path.suffix == ".svg":
        path.write_text(rounded(path.read_text(encoding="utf-8")), encoding="utf-8")


def rounded(text: str) -> str:
    """An SVG with coordinates of two decimals, hundredths of a point, and numbers below 1 of four: a
    fourteenth smaller than with matplotlib's six."""

    def shorter(number: re.Match[str]) -> str:
        value = float(number[0])
        return f"{value:.{2 if value >= 1 else 4}f}".rstrip("0").rstrip(".")

    return re.sub(r"(?<![\w.])\d+\.\d{3,}(?![\w.])", shorter, text)


@contextmanager
def style(more: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Context manager: matplotlib draws with STYLE and the settings in `more`."""
    from matplotlib import rc_context

    settings: dict[Any, Any] = {**STYLE, **(more or {})}
    with rc_context(settings):
        yield
