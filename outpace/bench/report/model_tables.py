"""Tables about the models of a benchmark: seconds of loading, compiling and warm-up, and milliseconds per
forward."""

from __future__ import annotations

from collections.abc import Mapping

from outpace.bench.report.tables import number
from outpace.cost.cost_curve import CostCurve
from outpace.tables import Table


def preparation(
    loading: Mapping[str, float], compiling: Mapping[str, float], warm_up: Mapping[str, float]
) -> Table:
    """Seconds of loading and compiling per model, and in the note the total seconds of warm-up."""
    names = list(dict.fromkeys((*loading, *compiling)))
    columns, parts = ["model", "loading"], [loading]
    if compiling:
        columns, parts = [*columns, "compiling"], [*parts, compiling]
    rows = tuple((name, *(number(part.get(name)) for part in parts)) for name in names)
    note = f"Warming up took {sum(warm_up.values()):.1f} s." if warm_up else ""
    return Table("Load time, in seconds", tuple(columns), rows, note)


def forward_costs(curves: Mapping[str, CostCurve]) -> Table:
    """Milliseconds per forward: one row per model and mode, one column per number of tokens in a row of the
    batch."""
    sizes = sorted({size for curve in curves.values() for size in curve.sizes})
    rows = tuple((name, *(f"{1000 * curve(size):.2f}" for size in sizes)) for name, curve in curves.items())
    return Table("Forward time by number of tokens, in milliseconds", ("model", *map(str, sizes)), rows)
