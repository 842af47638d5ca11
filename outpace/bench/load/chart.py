"""The chart of a load test: latency percentiles and goodput over the load, one colour for each contender."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from outpace.bench.load.summary import LoadRow, Percentiles
from outpace.bench.report.line_chart import Line, LinePanel, line_chart
from outpace.bench.report.plot import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.typing import LineStyleType

Value = Callable[[LoadRow], float | None]
DASHES: dict[str, LineStyleType] = {"p50": "-", "p95": "--", "p99": ":"}
LATENCIES: dict[str, Callable[[LoadRow], Percentiles | None]] = {
    "Time to first token, ms": lambda row: row.time_to_first_token,
    "Inter-token latency, ms": lambda row: row.inter_token_latency,
    "Time per output token, ms": lambda row: row.time_per_output_token,
    "End-to-end latency, ms": lambda row: row.latency,
}

RATES: dict[str, Value] = {
    "Output tokens per second": lambda row: row.output_tokens_per_second,
    "Goodput, requests per second": lambda row: row.goodput,
}


def chart(rows: Sequence[LoadRow]) -> Figure:
    """The figure for these rows: a column of panels for rates, and one for concurrent streams."""
    contenders = list(dict.fromkeys(row.contender for row in rows))
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(contenders)}
    kinds = list(dict.fromkeys(type(row.level) for row in rows))
    rates = {name: rate for name, rate in RATES.items() if any(rate(row) is not None for row in rows)}
    columns = [
        _column([row for row in rows if isinstance(row.level, kind)], kind.axis, colours, rates)
        for kind in kinds
    ]
    return line_chart(list(zip(*columns, strict=True)), colours=colours, dashes=DASHES)


def _column(
    rows: Sequence[LoadRow], axis: str, colours: Mapping[str, str], rates: Mapping[str, Value]
) -> list[LinePanel]:
    def line(contender: str, value: Value, dashes: LineStyleType = "-") -> Line:
        points = [
            (float(row.level.value), y)
            for row in rows
            if row.contender == contender and (y := value(row)) is not None
        ]
        return Line(points, colours[contender], dashes)

    panels = [
        LinePanel(
            title,
            [
                line(each, _percentile(latency, name), dashes)
                for each in colours
                for name, dashes in DASHES.items()
            ],
            axis,
        )
        for title, latency in LATENCIES.items()
    ]
    return panels + [
        LinePanel(title, [line(each, rate) for each in colours], axis) for title, rate in rates.items()
    ]


def _percentile(latency: Callable[[LoadRow], Percentiles | None], name: str) -> Value:
    return lambda row: getattr(found, name) if (found := latency(row)) else None
