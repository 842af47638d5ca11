"""The results of a benchmark as one self-contained HTML page: the recommendation and how to use it, a chart
and a table of everything, then charts and tables of each workload and temperature, folded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outpace.bench.measure.contender import COMPILED, EAGER
from outpace.bench.measure.measurement import Measurement
from outpace.bench.report.fidelity import fidelity
from outpace.bench.report.samples import samples
from outpace.bench.report.summary import ResultRow, headline
from outpace.bench.report.tables import (
    heading,
    notes,
    number,
    percent,
    tables,
    with_interval,
)
from outpace.bench.report.usage import commands
from outpace.page.templates import render
from outpace.tables import Table

DECISION = ("method", "speedup (95 %)", "tokens/s", "tokens per step", "output")
OURS, EAGER_OURS, PEER = "#3a7d44", "#9cc3a3", "#c3c9d1"  # colours of bars


@dataclass(frozen=True)
class Bar:
    """A bar of a chart, with its interval."""

    label: str
    value: float
    low: float
    high: float
    colour: str
    note: str  # text after the bar


def bars(rows: Sequence[ResultRow]) -> list[Bar]:
    """The bars of a chart of speedups: one per row with enough prompts for an interval."""
    two_modes = {COMPILED, EAGER} <= {row.mode for row in rows}
    return [
        Bar(
            row.contender,
            row.speedup.median,
            row.speedup.low,
            row.speedup.high,
            PEER if row.kind == "peer" else EAGER_OURS if two_modes and row.mode == EAGER else OURS,
            note=f"{with_interval(row.speedup)}, {number(row.tokens_per_second.median, 1)} tokens/s",
        )
        for row in rows
        if not row.too_few_prompts
    ]


def decision(row: ResultRow) -> tuple[str, ...]:
    """A row of the table below the chart."""
    counts = row.counts
    return (
        row.contender,
        with_interval(row.speedup),
        number(row.tokens_per_second.median, 1),
        number(counts.mean_acceptance_length if counts else None),
        "the target's" if row.lossless else "changed",
    )


def overview(measurement: Measurement, rows: Sequence[ResultRow]) -> dict[str, Any] | None:
    """The chart on top, of the rows that the recommendation is based on; None if there is nothing to show."""
    decisive = measurement.decisive(rows)
    shown = bars(decisive)
    if not shown:
        return None
    widths = [max(bar.high / bar.value, bar.value / bar.low) - 1 for bar in shown if bar.low > 0]
    workload = "all workloads" if decisive[0].workload == "all" else decisive[0].workload
    return {
        "heading": f"Speedups: {heading(workload, decisive[0].temperature)}",
        "table": Table("The same in numbers", DECISION, tuple(map(decision, decisive))),
        "bars": shown,
        "spread": percent(max(widths, default=None)),
        "two_modes": {COMPILED, EAGER} <= {row.mode for row in decisive},
        "peers": any(row.kind == "peer" for row in decisive),
    }


def to_html(measurement: Measurement, rows: Sequence[ResultRow]) -> str:
    """The HTML page as text; it loads no other files."""
    groups: list[dict[str, Any]] = []
    for temperature in dict.fromkeys(row.temperature for row in rows):
        for workload in dict.fromkeys(row.workload for row in rows):
            shown = headline(rows, workload, temperature, measurement.selection)
            here = [row for row in rows if (row.workload, row.temperature) == (workload, temperature)]
            if shown:
                group = {
                    "heading": heading(workload, temperature),
                    "bars": bars(shown),
                    "tables": tables(here, measurement.selection),
                }
                groups.append(group)
    interrupted = (
        ""
        if measurement.complete
        else f"Interrupted: {len(measurement.runs)} of {measurement.total} runs were made."
    )
    settings, disturbance = measurement.settings, measurement.disturbance
    title = f"Speculative decoding methods side by side: {settings.get('target', 'target')}"
    *answers, advice = measurement.answers(rows)
    return render(
        "outpace.bench.report",
        "report.html",
        title=title,
        advice=f"No speed on this page can be relied on: {disturbance}." if disturbance else advice,
        interrupted=interrupted,
        disturbance=disturbance,
        answers=answers,
        commands=commands(measurement, rows),
        overview=overview(measurement, rows),
        fidelity=fidelity(measurement, rows),
        samples=samples(measurement, rows),
        groups=groups,
        models=measurement.models(),
        facts=facts(measurement),
        notes=notes(rows),
    )


def facts(measurement: Measurement) -> list[tuple[str, str]]:
    """(Label, value) of models, data type, machine, versions, commit, date and command."""
    source, settings = measurement.provenance, measurement.settings
    versions = ", ".join(f"{name} {version}" for name, version in source["versions"].items() if version)
    return [
        ("Target model", str(settings.get("target", "-"))),
        ("Draft model", str(settings.get("draft") or "none")),
        ("Data type", f"{source.get('dtype', '-')}; in effect {source.get('precision', '-')}"),
        ("Machine", f"{source['device']}, {source['threads']} threads"),
        ("Versions", versions),
        ("Commit", str(source["commit"] or "-")),
        ("Date", str(source["date"])),
        ("Command", " ".join(map(str, source["argv"]))),
    ]
