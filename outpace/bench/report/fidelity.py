"""Speed against the distance from the target's texts, for benchmarks with methods that change them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outpace.bench.measure.contender import EAGER
from outpace.bench.measure.measurement import Measurement
from outpace.bench.report.summary import ResultRow, headline
from outpace.bench.report.tables import heading, quality_table
from outpace.page.line_chart import LineChart, Point, point_chart
from outpace.tables import Table

UNLIKE = "tokens that are not the target's most probable ones, in percent"
EXCESS = (
    "excess loss over plain sampling, in nats per token: more probable texts left of 0, less probable right"
)


@dataclass(frozen=True)
class Fidelity:
    """The chart and the table of a temperature."""

    heading: str
    chart: LineChart | None  # None: no speedup has an interval
    x_title: str
    table: Table


def fidelity(measurement: Measurement, rows: Sequence[ResultRow]) -> list[Fidelity]:
    """The charts and tables of all temperatures over all prompts; none if quality was not measured."""
    workloads = list(dict.fromkeys(row.workload for row in rows))
    found = list[Fidelity]()
    for temperature in dict.fromkeys(row.temperature for row in rows if row.temperature is not None):
        shown = headline(rows, workloads[-1], temperature, measurement.selection)
        about = heading("all workloads" if len(workloads) > 1 else workloads[0], temperature)
        if table := quality_table("", shown):
            series = curves(measurement, shown)
            chart = point_chart(series) if series else None
            title = EXCESS if temperature else UNLIKE
            found.append(Fidelity(f"Speed and quality: {about}", chart, title, table))
    return found


def curves(measurement: Measurement, rows: Sequence[ResultRow]) -> dict[str, list[Point]]:
    """The points of the chart by method: (distance from the target's texts, speedup, value of the option
    given by `--pareto`). `rows`: those of one temperature; rows with too few prompts for an interval are left
    out."""
    series: dict[str, list[Point]] = {}
    plain = next((distance(row) for row in rows if row.contender == measurement.contenders[0].name), 0.0)
    for row in rows:
        if row.too_few_prompts or (row.quality is None and not row.lossless):
            continue
        mark = f" ({EAGER})"
        own = row.contender.removesuffix(mark)
        curve, value = measurement.curves.get(own, (own, ""))
        name = curve + mark * (own != row.contender)
        at = plain if row.quality is None else distance(row)
        series.setdefault(name, []).append((at, row.speedup.median, value))
    return series


def distance(row: ResultRow) -> float:
    """How far the texts are from the target's: at temperature 0 percent of the tokens, else nats per token;
    0 for plain decoding at other temperatures."""
    quality = row.quality
    if quality is None:
        return 0.0
    if quality.unlike is not None:
        return 100 * quality.unlike.mean
    return quality.excess.mean if quality.excess else 0.0
