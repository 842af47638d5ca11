"""Plots of results as SVG, with matplotlib (extra `report`): horizontal bars with 95 % intervals.

Text and axes are grey, which reads on light and on dark pages; inline SVG takes the page's own text colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#3a7d44", "#2f6690", "#c8553d", "#8a94a3", "#e1a730", "#6d597a")
OURS, EAGER_OURS, PEER = "#3a7d44", "#9cc3a3", "#c3c9d1"
TEXT = (
    "#7a828c"  # contrast of at least 3.9 with white and with the dark pages of GitHub and the documentation
)
WIDTH = 5.6  # inches: at 400 pixels, the width of a phone, a label of 9 points is still 9 pixels high
BAR_HEIGHT = 0.27  # inches
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
    """A labelled value with its interval; `limit` is marked by a dashed line where there is one."""

    label: str
    value: float
    low: float
    high: float
    colour: str = OURS
    limit: float | None = None
    note: str = ""  # printed behind the bar; default: the value


@dataclass(frozen=True)
class Panel:
    """Bars with an axis of their own."""

    title: str
    bars: Sequence[Bar]


def bar_chart(panels: Sequence[Panel], axis_label: str, *, reference: float | None = None) -> Figure:
    """Panels below one another, with a dotted line at `reference`."""
    with _style():
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
    places = range(len(panel.bars))
    axes.patch.set_alpha(0)
    axes.set_title(panel.title, loc="left")
    for place, bar in zip(places, panel.bars, strict=True):
        axes.barh(place, bar.value, height=0.72, color=bar.colour)
        axes.plot([bar.low, bar.high], [place, place], color=TEXT, linewidth=1.6, solid_capstyle="butt")
        note = bar.note or f"{bar.value:.2f}"
        axes.annotate(
            note, (max(bar.high, bar.value), place), xytext=(4, 0), textcoords="offset points", va="center"
        )
        if bar.limit is not None:
            axes.plot([bar.limit] * 2, [place - 0.42, place + 0.42], color=COLOURS[2], linestyle="--")
    if reference is not None:
        axes.axvline(reference, color=COLOURS[2], linestyle=":", linewidth=1.2)
    axes.set_yticks(list(places), [bar.label for bar in panel.bars])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.invert_yaxis()
    widest = max((max(bar.high, bar.value, bar.limit or 0) for bar in panel.bars), default=1.0)
    axes.set_xlim(0, max(axes.get_xlim()[1], 1.18 * widest))


def svg(figure: Figure, *, name: str = "outpace") -> str:
    """The figure as an SVG element: the same text every time, identifiers made from `name`, text in
    `currentColor`."""
    out = StringIO()
    with _style({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :].replace(TEXT, "currentColor")


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the path's suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _style({"svg.hashsalt": path.stem}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


@contextmanager
def _style(more: Mapping[str, Any] | None = None) -> Iterator[None]:
    from matplotlib import rc_context

    settings: dict[Any, Any] = {**STYLE, **(more or {})}
    with rc_context(settings):
        yield


def draw_rules(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Acceptance length of verification rules with intervals and upper bounds, grouped by how trees were
    drafted."""
    kinds = list(dict.fromkeys(row["drafting"] for row in rows))
    panels = [
        Panel(
            f"draft: {kind}",
            [
                Bar(
                    row["rule"],
                    row["length"].mean,
                    row["length"].low,
                    row["length"].high,
                    COLOURS[index % len(COLOURS)],
                    row["bound"],
                    f"{row['length'].mean:.3f}",
                )
                for row in rows
                if row["drafting"] == kind
            ],
        )
        for index, kind in enumerate(kinds)
    ]
    save(bar_chart(panels, "mean acceptance length, bonus token included (dashed: upper bound)"), path)
