"""Results pages: `python -m benchmarks.results` writes docs/results/NAME.md and its plot from
docs/results/NAME/.

A page is a plot, a table of at most ten goals with the measured values, a paragraph on missed goals,
further tables of a file's rows if it names any, and links to the JSON files. docs/results/NAME/page.json
holds its title, panels of bars or lines, goals (under the key "targets"), paragraph and tables. A file that
was measured on uncommitted changes is refused.
"""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import plot
from benchmarks.paired import ANY, OR, Result, compare, load
from outpace.bench.measure.bootstrap import Interval
from outpace.bench.report.summary import ALL, VARIED
from outpace.tables import Table, markdown

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
PAGE = "page.json"
MAX_ROWS = 10
COLUMNS = ("what", "goal", "measured (95 %)", "")
PEERS = {
    "transformers": "transformers",
    "openvino": "OpenVINO GenAI",
    "vllm": "vLLM",
    "llamacpp": "llama.cpp",
}
# keys under which result files store their rows
ROW_LISTS = ("results", "microseconds", "milliseconds", "ratios")
NOTE = (
    "A ratio is the median of paired runs (same prompt, round and seed); its interval is a 95 % bootstrap "
    "over prompts. "
    "A goal is met or missed when the whole interval lies on one side of it, and open otherwise."
)


@dataclass(frozen=True)
class MeasuredValue:
    """A measured value, with its interval if there is one."""

    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""

    @staticmethod
    def of(interval: Interval, note: str = "") -> MeasuredValue:
        known = interval.known
        return MeasuredValue(
            interval.median, interval.low if known else None, interval.high if known else None, note
        )


def measured(files: Mapping[str, Result], goal: Mapping[str, Any]) -> MeasuredValue | None:
    """The measured value of a goal: a ratio of paired runs, or a value of a result row. None if it was not
    measured."""
    data = files.get(goal["file"])
    if data is None:
        return None
    if "method" in goal:
        found = compare(data, goal["method"], goal.get("over", "plain"), **where(goal))
        if found is None:
            return None
        if not found.ratio.known:
            return MeasuredValue(float("nan"), note="too few prompts")
        best = f"{found.prompts} prompts"
        over = goal.get("over", "plain")
        if OR in goal["method"]:
            best += f"; {label(found.method)}"
        if over.endswith(ANY) or OR in over:
            best += f"; over {label(found.over)}"
        return MeasuredValue.of(found.ratio, best)
    value = value_of(data, goal["select"], goal["value"])
    if isinstance(value, Mapping):
        middle = value.get("median", value.get("mean"))
        return None if middle is None else MeasuredValue(middle, value.get("low"), value.get("high"))
    if value is not None and {"over_row", "over_value"} & set(goal):
        row = {**goal["select"], **goal.get("over_row", {})}
        other = value_of(data, row, goal.get("over_value", goal["value"]))
        return MeasuredValue(value / other) if other else None
    return MeasuredValue(float(value)) if isinstance(value, int | float) else None


def value_of(data: Result, select: Mapping[str, Any], name: str) -> Any:
    """Field `name` of the first row whose fields equal `select`; None if there is none."""
    rows = (row for each in ROW_LISTS for row in data.get(each, ()))
    row = next((row for row in rows if all(row.get(key) == value for key, value in select.items())), {})
    return field_of(row, name)


def field_of(row: Mapping[str, Any], name: str) -> Any:
    """A field of a row, or of an object in it: "latency_ms.p50". None if there is none."""
    found: Any = row
    for key in name.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def rows_table(files: Mapping[str, Result], spec: Mapping[str, Any]) -> Table:
    """The rows of a file; spec: title, file, columns as pairs of heading and field, `select`, the values of
    fields that the rows have, and `rows`, the key in ROW_LISTS under which the file has them."""
    headings = tuple(heading for heading, _ in spec["columns"])
    cells = [
        tuple(_text(field_of(row, name)) for _, name in spec["columns"])
        for row in files.get(spec["file"], {}).get(spec.get("rows", "results"), ())
        if all(row.get(key) == value for key, value in spec.get("select", {}).items())
    ]
    return Table(spec["title"], headings, tuple(cells))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return "-" if value is None else str(value)


def where(of: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `compare` that select prompts, and what is measured."""
    return {
        "workload": of["workload"],
        "temperature": of["temperature"],
        "selection": of.get("selection", VARIED),
        "measure": of.get("measure", "speed"),
    }


def limits(goal: Mapping[str, Any]) -> str:
    """A goal's limits as text, such as `at least 1.5`; `-` without limits."""
    words = {"at_least": "at least", "at_most": "at most"}
    found = [f"{word} {goal[key]:g}{goal.get('unit', '')}" for key, word in words.items() if key in goal]
    return ", ".join(found) or "-"


def verdict(goal: Mapping[str, Any], found: MeasuredValue | None) -> tuple[str, str]:
    """The value with its interval, and whether the goal is met, missed or open."""
    if found is None:
        return "not measured", ""
    if found.value != found.value:
        return found.note, ""
    unit = goal.get("unit", "")
    text = f"{found.value:.3g}{unit}"
    if found.low is None or found.high is None:
        return text, "no interval" if {"at_least", "at_most"} & set(goal) else ""
    text += f" ({found.low:.3g} to {found.high:.3g})" + (f"; {found.note}" if found.note else "")
    least, most = goal.get("at_least", float("-inf")), goal.get("at_most", float("inf"))
    if not {"at_least", "at_most"} & set(goal):
        return text, ""
    if least <= found.low and found.high <= most:
        return text, "met"
    return text, "missed" if found.high < least or found.low > most else "open"


def label(method: str) -> str:
    """A method's name for plots, with engine names in their official spelling."""
    first, _, rest = method.partition(" ")
    return f"{PEERS[first]} {rest}" if first in PEERS else method


def panel(files: Mapping[str, Result], spec: Mapping[str, Any]) -> plot.Panel | None:
    """A panel of bars: speedups of `methods` over plain decoding, or values of `rows` of a file. None if
    nothing was measured."""
    data = files.get(spec["file"])
    if data is None:
        return None
    bars: list[plot.Bar] = []
    for method in spec.get("methods", ()):
        found = compare(data, method, spec.get("over", "plain"), **where(spec))
        if found and found.ratio.known:
            gain = found.ratio
            name = label(found.method)
            if found.method.split(" ")[0] in PEERS:  # without settings, which are in the tables
                name = name.partition(":")[0].partition(", best")[0].removesuffix(" (its defaults)")
            colour = plot.PEER if found.method.split(" ")[0] in PEERS else plot.OURS
            bars.append(plot.Bar(name, gain.median, gain.low, gain.high, colour))
    for row in spec.get("rows", ()):
        found_value = measured(files, {"file": spec["file"], **row})
        if found_value:
            value = found_value.value
            low, high = (value if end is None else end for end in (found_value.low, found_value.high))
            colour = plot.PEER if row.get("peer") else plot.OURS
            bars.append(plot.Bar(row["label"], value, low, high, colour))
    return plot.Panel(spec["title"], bars) if bars else None


def series(files: Mapping[str, Result], spec: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Name -> points of a line, of the rows of a file that have both values; spec: file, `by`, the field with
    the names, `names`, those to draw, and `x` and `y`, fields."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in files.get(spec["file"], {}).get("results", ()):
        if row.get(spec["by"]) in spec["names"] and row.get(spec["y"]) is not None:
            found.setdefault(row[spec["by"]], []).append((row[spec["x"]], row[spec["y"]]))
    return found


def render(folder: Path, *, plot_path: Path | None = None) -> str:
    """The Markdown page of a folder; writes its plot to `plot_path`. ValueError for more than MAX_ROWS
    goals."""
    page = json.loads((folder / PAGE).read_text(encoding="utf-8"))
    if len(page["targets"]) > MAX_ROWS:
        raise ValueError(f"{folder.name} has {len(page['targets'])} goals: a page shows at most {MAX_ROWS}")
    files = {path.name: load(path) for path in sorted(folder.glob("*.json.gz"))}
    rows = [(goal["what"], limits(goal), *verdict(goal, measured(files, goal))) for goal in page["targets"]]
    lines = [f"# {page['title']}", "", page["summary"], ""]
    panels = [found for spec in page.get("panels", ()) if (found := panel(files, spec))]
    drawn = page.get("lines")
    if drawn and (points := series(files, drawn)):
        if plot_path:
            axes = drawn["axis"], page["axis"]
            plot.save(plot.line_chart(points, axes, mark=drawn.get("mark")), plot_path)
        lines += [f"![{page['axis']}]({folder.name}/plot.svg)", ""]
    elif panels:
        if plot_path:
            plot.save(plot.bar_chart(panels, page["axis"], reference=page.get("reference")), plot_path)
        lines += [f"![{page['axis']}]({folder.name}/plot.svg)", ""]
    lines += [markdown(Table("", COLUMNS, tuple(rows))), "", page.get("note", NOTE), "", page["missed"], ""]
    for spec in page.get("tables", ()):
        lines += [markdown(rows_table(files, spec), 2), ""]
    lines += ["Measured with:", ""]
    for name, data in files.items():
        source = data["provenance"]
        command = shlex.join(map(str, source["argv"]))
        lines.append(
            f"- [{name}]({folder.name}/{name}): `{command}`; {source['device']}, {source['threads']} "
            "threads, "
            f"PyTorch {source['versions']['torch']}, commit {source['commit']}, {source['date'][:10]}"
            + ("" if data.get("complete", True) else "; interrupted")
            + "."
        )
    return "\n".join([*lines, ""])


def compact(data: Mapping[str, Any]) -> str:
    """JSON of a result file with a line per row."""
    fields: list[str] = []
    for key, value in data.items():
        rows = [json.dumps(row) for row in value] if isinstance(value, list) else None
        text = json.dumps(value) if not rows else "[\n" + ",\n".join(rows) + "\n]"
        fields.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def shortened(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A result file of `outpace bench` without the rows that no page shows: those that pool temperatures and,
    where all prompts were selected, those of the varied ones only. Both follow from the runs."""
    if "selection" not in data.get("settings", {}):
        return data
    shown = {ALL} if data["settings"]["selection"] == ALL else {ALL, VARIED}
    rows = [row for row in data["results"] if row["selection"] in shown and row["temperature"] is not None]
    return {**data, "results": rows}


def publish(measured: Path, published: Path) -> None:
    """Write a measured file to docs/results, compressed: all of them are downloaded with the repository."""
    data = shortened(json.loads(measured.read_text(encoding="utf-8")))
    published.parent.mkdir(exist_ok=True)
    # without a time, so that equal measurements are equal files
    published.write_bytes(gzip.compress(compact(data).encode(), mtime=0))


def pages(results: Path = RESULTS) -> list[Path]:
    """The result folders that have a page.json."""
    return sorted(path.parent for path in results.glob(f"*/{PAGE}"))


def write(folders: Sequence[Path]) -> None:
    """Write each folder's page next to the folder, and the plot into it."""
    for folder in folders:
        text = render(folder, plot_path=folder / "plot.svg")
        folder.with_suffix(".md").write_text(text, encoding="utf-8")


def main(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders with a page.json; default: all of docs/results.")
    ] = None,
) -> None:
    """Write the results pages and their plots from the JSON files of measurements."""
    try:
        write(folders or pages())
    except (ValueError, OSError) as error:
        typer.echo(f"results: {error}", err=True)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    typer.run(main)
