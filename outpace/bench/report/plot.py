"""Plots of measurements, with matplotlib where it is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

COLOURS = ("#3a7d44", "#2f6690", "#c8553d", "#8a94a3", "#e1a730", "#6d597a")


def needs() -> None:
    """Fail now, and not after minutes of measuring, where matplotlib is missing."""
    import_module("matplotlib")


def draw_rules(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One bar a rule, with its interval, and a line at what it cannot exceed; grouped by how the trees were drafted."""
    figure = import_module("matplotlib.figure").Figure(
        figsize=(8, 1 + 0.42 * len(rows)), layout="constrained"
    )
    axes = figure.add_subplot()
    kinds = list(dict.fromkeys(row["drafting"] for row in rows))
    places = list(range(len(rows)))
    lengths = [row["length"] for row in rows]
    axes.barh(
        places,
        [each.mean for each in lengths],
        xerr=[[each.mean - each.low for each in lengths], [each.high - each.mean for each in lengths]],
        color=[COLOURS[kinds.index(row["drafting"]) % len(COLOURS)] for row in rows],
        ecolor="#1c2430",
        capsize=3,
    )
    for place, row in zip(places, rows, strict=True):
        axes.plot([row["bound"]] * 2, [place - 0.4, place + 0.4], color="#b3423a", linestyle="--")
    axes.set_yticks(places, [f"{row['rule']}, {row['drafting']}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("acceptance length, bonus token included (dashed: bound)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
