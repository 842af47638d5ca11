"""A page of results from the files of measurements: `python -m benchmarks.results docs/results/engine/*.json`.

A file {"wanted": [...]} lists what is wanted: {"what", "file", "select", "value", "over", "at_least" or "at_most"}.
`select` names a row of that file's results by its fields, `value` a number in it ("speedup.low"), and `over` another
row, or a number of the same row, to divide by. Every headline row is listed below, wanted or not. "reading" in the same
file holds paragraphs that end the page: how the numbers came about.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import forwards, suffix_trees
from outpace.tables import Table, markdown

VERIFIERS = (
    "draft",
    "rule",
    "acceptance length",
    "against the first",
    "bound",
    "any kept",
    "bound of any kept",
)
RULES = ("rule", "tree", "milliseconds", "slowest draft", "warping p", "reading p and q", "times reading")
COLUMNS = ("wanted", "got", "command", "commit")
HEADLINE = (
    "method",
    "prompts of",
    "temperature",
    "prompts",
    "tokens/s",
    "times plain",
    "acceptance length",
    "efficiency",
    "repetition",
)
LISTS = ("results", "microseconds", "milliseconds", "facts")  # where a file keeps its rows


def rows_of(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of one file."""
    return next((data[name] for name in LISTS if name in data), [])


def number_in(row: Mapping[str, Any], path: str) -> float | None:
    """The number at a dotted path."""
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def find(data: Mapping[str, Any], select: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The row with these fields; where nothing is said about the selection, the headline one."""
    found = [row for row in rows_of(data) if all(row.get(name) == value for name, value in select.items())]
    headlines = [row for row in found if row.get("headline", True)]
    return next(iter(headlines or found), None)


def got(data: Mapping[str, Any], params: Mapping[str, Any]) -> float | None:
    """What was measured for a wish; None where its row or number is missing."""
    row = find(data, params["select"])
    value = number_in(row, params["value"]) if row else None
    over = params.get("over")
    if over is None or value is None or row is None:
        return value
    other = number_in(row, over) if isinstance(over, str) else None
    if isinstance(over, Mapping):
        base = find(data, {**params["select"], **over})
        other = number_in(base, params["value"]) if base else None
    return value / other if other else None


def verdict(params: Mapping[str, Any], value: float | None) -> str:
    """The number, and whether it is what was wanted."""
    if value is None:
        return "not measured"
    good = params.get("at_least", value) <= value <= params.get("at_most", value)
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{text}{params.get('unit', '')}" + ("" if good else " (missed)")


def wanted(params: Mapping[str, Any]) -> str:
    """A wish in words."""
    limits = [
        f"{word} {params[key]:g}{params.get('unit', '')}" for key, word in LIMITS.items() if key in params
    ]
    return params["what"] + (": " + ", ".join(limits) if limits else "")


LIMITS = {"at_least": "at least", "at_most": "at most"}


def source(data: Mapping[str, Any]) -> tuple[str, str]:
    """Command and commit of a file."""
    known = data.get("provenance", {})
    words = [str(word) for word in known.get("argv", [])]
    return f"`{' '.join(words)}`" if words else "-", str(known.get("commit") or "-")


def page(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown for these files, by name."""
    row_params = [params for data in files.values() for params in data.get("wanted", [])]
    measured = {name: data for name, data in files.items() if rows_of(data)}
    numbers = {name: index for index, name in enumerate(measured, 1)}
    rows: list[tuple[str, ...]] = []
    for params in row_params:
        data = measured.get(params["file"], {})
        command = str(numbers.get(params["file"], "-"))
        rows.append(
            (wanted(params), verdict(params, got(data, params) if data else None), command, source(data)[1])
        )
    lines = ["# Results", "", *machines(measured)]
    if row_params:
        lines += ["", markdown(Table("Wanted and got", COLUMNS, tuple(rows)), 2), "", "Commands:", ""]
        lines += [f"{number}. {source(measured[name])[0]}" for name, number in numbers.items()]
    for name, data in measured.items():
        for columns, make in ((HEADLINE, headline_rows), (VERIFIERS, verifier_rows), (RULES, rule_rows)):
            if shown := tuple(make(data)):
                lines += ["", markdown(Table(name, columns, shown), 2)]
        if data.get("schema") == forwards.SCHEMA:
            lines += [line for table in forwards.tables(data) for line in ("", markdown(table, 2))]
        if data.get("schema") == suffix_trees.SCHEMA:
            lines += ["", markdown(suffix_trees.to_table(data["results"]), 2)]
    reading = [paragraph for data in files.values() for paragraph in data.get("reading", [])]
    if reading:
        lines += ["", "## How to read this", ""]
        lines += ["\n\n".join(reading)]
    return "\n".join(lines) + "\n"


def machines(files: Mapping[str, Any]) -> Iterable[str]:
    """One line a file: device, threads, versions, date."""
    for name, data in files.items():
        known = data.get("provenance", {})
        versions = ", ".join(f"{key} {value}" for key, value in known.get("versions", {}).items() if value)
        whole = "" if data.get("complete", True) else " Interrupted: not everything was measured."
        threads = known.get("threads", "?")
        yield f"- {name}: {known.get('device', '?')}, {threads} threads; {versions}; {known.get('date', '?')}.{whole}"


def headline_rows(data: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    """Every headline row of a side-by-side measurement at one temperature."""
    for row in data.get("results", []):
        if not row.get("headline") or row["temperature"] is None:
            continue
        gain, length, efficiency = row["speedup"], row.get("mean_acceptance_length"), row.get("efficiency")
        yield (
            row["method"],
            row["workload"],
            f"{row['temperature']:g}",
            f"{row['prompts']} ({row['selection']})",
            f"{row['tokens_per_second']['median']:.1f}",
            f"{gain['median']:.2f} ({gain['low']:.2f}-{gain['high']:.2f})",
            f"{length:.2f}" if length else "-",
            f"{efficiency:.2f}" if efficiency else "-",
            f"{100 * row['repetition']:.0f} %",
        )


def verifier_rows(data: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    """Every row of a comparison of rules."""

    def spread(value: Mapping[str, float], sign: str = "") -> str:
        return f"{value['mean']:{sign}.3f} ({value['low']:{sign}.3f} to {value['high']:{sign}.3f})"

    for row in data["results"] if data.get("schema") == "outpace-verifiers/1" else ():
        any_kept = (f"{row['any']['mean']:.3f}", f"{row['any_bound']['mean']:.3f}")
        yield (
            row["drafting"],
            row["rule"],
            spread(row["length"]),
            spread(row["difference"], "+"),
            f"{row['bound']:.3f}",
            *any_kept,
        )


def rule_rows(data: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    """What each rule costs at a large vocabulary."""
    for row in data["milliseconds"] if data.get("schema") == "outpace-rules/1" else ():
        times = [f"{row[name]:.2f}" for name in ("verify", "slowest", "warp", "read", "over_reading")]
        yield row["rule"], row["tree"], *times


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.results", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="default: the output")
    given = parser.parse_args(arguments)
    text = page({path.name: json.loads(path.read_text(encoding="utf-8")) for path in given.files})
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
