"""Tables about the models of a measurement: how long they took to get ready, and what their forwards cost."""

from __future__ import annotations

from collections.abc import Mapping

from outpace.bench.measure.forward_cost import CostCurve
from outpace.bench.report.tables import number
from outpace.tables import Table


def preparation(
    loading: Mapping[str, float], compiling: Mapping[str, float], warm_up: Mapping[str, float]
) -> Table:
    """Seconds before the first run that counts."""
    names = list(dict.fromkeys((*loading, *compiling)))
    columns, parts = ["model", "loading"], [loading]
    if compiling:
        columns, parts = [*columns, "compiling"], [*parts, compiling]
    rows = tuple((name, *(number(part.get(name)) for part in parts)) for name in names)
    note = f"Warming up took {sum(warm_up.values()):.1f} s." if warm_up else ""
    return Table("Getting ready, in seconds", tuple(columns), rows, note)


def forward_costs(curves: Mapping[str, CostCurve]) -> Table:
    """One row a model and mode, one column a number of tokens."""
    sizes = sorted({size for curve in curves.values() for size in curve.sizes})
    rows = tuple((name, *(f"{1000 * curve(size):.2f}" for size in sizes)) for name, curve in curves.items())
    return Table("A forward over so many tokens, in milliseconds", ("model", *map(str, sizes)), rows)
