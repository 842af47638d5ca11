"""Fill the README's results section from docs/results/engine/*.json. Numbers get there no other way.

`python scripts/results_table.py` rewrites the section; with --check it only says whether it is up to date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "docs" / "results" / "engine"
SECTION = re.compile(r"(<!-- results:begin -->\n).*?(<!-- results:end -->)", re.DOTALL)
ELSEWHERE = re.compile(r"^synthetic:|\(its defaults\)$")  # rows that only the page of results shows
NOTHING = "No measurement has been published here yet. `outpace bench` makes yours.\n"


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None or value != value else f"{value:.{digits}f}"


def speedup(interval: dict[str, float]) -> str:
    return f"{number(interval['median'])} ({number(interval['low'])} to {number(interval['high'])})"


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The headline rows: all workloads together where there are several, each temperature for itself."""
    rows = [row for row in rows if row["headline"] and not ELSEWHERE.search(row["method"])]
    rows = [row for row in rows if row["workload"] == "all"] or rows
    return [row for row in rows if row["temperature"] is not None] or rows


def table(result: dict[str, Any]) -> str:
    """One file of `outpace bench --json` as a table, with what was measured above it and where it comes from below."""
    source, settings = result["provenance"], result["settings"]
    versions = source["versions"]
    lines = [
        f"`{settings.get('target', 'target')}` on {source['device']}, {source['threads']} threads, PyTorch "
        f"{versions['torch']}, batch {settings['batch']}, up to {settings['max_tokens']} new tokens, "
        f"{settings['rounds']} rounds. The speedup is over plain decoding by the same engine, with its 95 % interval; "
        "the mean acceptance length counts the bonus token, so plain decoding has 1.",
        "",
        "| Method | Temperature | Prompts | Tokens/s | Speedup | Mean acceptance length | Repetition |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in shown(result["results"]):
        heat = "all" if row["temperature"] is None else f"{row['temperature']:g}"
        cells = [row["method"], heat, str(row["prompts"]), number(row["tokens_per_second"]["median"], 1)]
        cells += [speedup(row["speedup"]), number(row.get("mean_acceptance_length"))]
        cells += [f"{100 * row['repetition']:.0f} %"]
        lines.append("| " + " | ".join(cells) + " |")
    command = " ".join(source["argv"])
    lines += ["", f"Commit {source['commit']}, {source['date'][:10]}, `{command}`."]
    if not result["complete"]:
        lines.append(f"Interrupted after {result['runs_made']} of {result['runs_planned']} runs.")
    lines += ["", "By prompts, in a batch, and the engine's own overhead: [results](docs/results/engine.md)."]
    return "\n".join([*lines, ""])


def section(results: Path) -> str:
    loaded = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    benches = [result for result in loaded if result.get("schema") == "outpace-bench/1"]
    benches = [result for result in benches if result["settings"]["batch"] == 1]
    return "\n".join(map(table, benches)) or NOTHING


def filled(readme: str, results: Path) -> str:
    text = section(results)
    return SECTION.sub(lambda match: match[1] + text + match[2], readme)


if __name__ == "__main__":
    old = README.read_text(encoding="utf-8")
    new = filled(old, RESULTS)
    if "--check" in sys.argv:
        sys.exit("README.md's results are out of date: run scripts/results_table.py" if new != old else 0)
    README.write_text(new, encoding="utf-8")
