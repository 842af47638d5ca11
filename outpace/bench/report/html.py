"""A measurement as one self-contained HTML page: speedups with their intervals drawn, then the tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from outpace.bench.measure.contender import COMPILED, EAGER
from outpace.bench.measure.measurement import Measurement
from outpace.bench.report.summary import Row, headline
from outpace.bench.report.tables import heading, notes, number, tables
from outpace.tables import Table

WIDTH, LABEL, FIGURES, LINE = (
    900,
    330,
    170,
    26,
)  # pixels; FIGURES: room for the numbers behind the longest bar
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1c2430; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #d5dbe3; padding: .25rem .7rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
svg text { font: 13px system-ui, sans-serif; fill: #1c2430; }
.advice { background: #eef4ee; border-left: 4px solid #3a7d44; padding: .6rem 1rem; }
.note { color: #556070; font-size: 13px; }
"""
COLOURS = {"outpace": "#3a7d44", "peer": "#8a94a3"}
PALE = "#9cc3a3"  # the same methods without compiled forwards


def chart(rows: Sequence[Row]) -> str:
    """One bar a method: its speedup over plain decoding, with its interval; the line marks 1."""
    drawn = [row for row in rows if row.speedup.high == row.speedup.high]
    twice = any(row.mode == COMPILED for row in rows)
    most = max([1.2, *(row.speedup.high for row in drawn)])
    scale = (WIDTH - LABEL - FIGURES) / most
    marks: list[str] = []
    for index, row in enumerate(drawn):
        top, gain = index * LINE + 4, row.speedup
        middle, end = top + 9, LABEL + gain.median * scale
        low, high = LABEL + gain.low * scale, LABEL + gain.high * scale
        colour = PALE if twice and row.mode == EAGER else COLOURS.get(row.kind, "#888")
        marks += [
            f'<text x="{LABEL - 8}" y="{top + 14}" text-anchor="end">{escape(row.contender)}</text>',
            f'<rect x="{LABEL}" y="{top}" width="{end - LABEL:.1f}" height="18" fill="{colour}"/>',
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="#1c2430" stroke-width="2"/>',
            f'<text x="{max(high, end) + 6:.1f}" y="{top + 14}">{number(gain.median)} '
            f"({number(row.tokens_per_second.median, 1)} tokens/s)</text>",
        ]
    height, one = len(drawn) * LINE + 8, LABEL + scale
    marks.append(
        f'<line x1="{one:.1f}" x2="{one:.1f}" y1="0" y2="{height}" stroke="#b3423a" stroke-dasharray="4 3"/>'
    )
    return f'<svg width="{WIDTH}" height="{height}" role="img">{"".join(marks)}</svg>'


def grid(table: Table) -> str:
    """A table in HTML."""
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return f"<h3>{escape(table.title)}</h3><table><tr>{head}</tr>{body}</table>"


def page(measurement: Measurement, rows: Sequence[Row]) -> str:
    """The whole page; it needs nothing from elsewhere."""
    known = measurement.provenance
    versions = ", ".join(f"{name} {version}" for name, version in known["versions"].items() if version)
    facts = f"{known['device']}, {known['threads']} threads; {versions}; commit {known['commit'] or '-'}; {known['date']}"
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Side by side</title>',
        f"<style>{STYLE}</style><h1>Side by side</h1><p>{escape(facts)}</p>",
        f"<p><code>{escape(' '.join(map(str, known['argv'])))}</code></p>",
    ]
    if not measurement.complete:
        parts.append(f"<p>Interrupted: {len(measurement.runs)} of {measurement.total} runs were made.</p>")
    parts += [f'<p class="advice">{escape(sentence)}</p>' for sentence in measurement.answers(rows)]
    for temperature in dict.fromkeys(row.temperature for row in rows):
        for workload in dict.fromkeys(row.workload for row in rows):
            shown = headline(rows, workload, temperature)
            if shown:
                parts.append(f"<h2>{escape(heading(workload, temperature))}</h2>{chart(shown)}")
                here = [row for row in rows if row.workload == workload and row.temperature == temperature]
                parts += map(grid, tables(here))
    parts += map(grid, measurement.models())
    return "\n".join([*parts, f'<p class="note">{escape(notes(rows))}</p></html>\n'])
