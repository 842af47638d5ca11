"""The results of a benchmark as one self-contained HTML page: charts of the speedups, then the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader

from outpace.bench.measure.contender import COMPILED, EAGER
from outpace.bench.measure.measurement import Measurement
from outpace.bench.report import plot
from outpace.bench.report.summary import ResultRow, headline
from outpace.bench.report.tables import heading, notes, number, tables

TEMPLATES = Environment(loader=PackageLoader("outpace.bench.report"), autoescape=True)


def chart(rows: Sequence[ResultRow], name: str) -> str:
    """A bar chart of speedups as inline SVG, one bar per row with enough prompts for an interval; the empty
    string if there is none."""
    two_modes = {COMPILED, EAGER} <= {row.mode for row in rows}
    bars = [
        plot.Bar(
            row.contender,
            row.speedup.median,
            row.speedup.low,
            row.speedup.high,
            plot.PEER
            if row.kind == "peer"
            else plot.EAGER_OURS
            if two_modes and row.mode == EAGER
            else plot.OURS,
            note=f"{number(row.speedup.median)} ({number(row.tokens_per_second.median, 1)} tokens/s)",
        )
        for row in rows
        if not row.too_few_prompts
    ]
    if not bars:
        return ""
    axis = "speedup over plain decoding"
    return plot.svg(plot.bar_chart([plot.Panel("", bars)], axis, reference=1.0), name=name)


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
                    "chart": chart(shown, f"{workload}-{temperature}"),
                    "tables": tables(here, measurement.selection),
                    "two_modes": {COMPILED, EAGER} <= {row.mode for row in shown},
                    "peers": any(row.kind == "peer" for row in shown),
                }
                groups.append(group)
    interrupted = (
        ""
        if measurement.complete
        else f"Interrupted: {len(measurement.runs)} of {measurement.total} runs were made."
    )
    settings = measurement.settings
    title = f"Speculative decoding methods side by side: {settings.get('target', 'target')}"
    return TEMPLATES.get_template("report.html").render(
        title=title,
        interrupted=interrupted,
        answers=measurement.answers(rows),
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
