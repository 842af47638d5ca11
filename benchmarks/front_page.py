"""Plot and table of the front page: `python -m benchmarks.front_page` writes docs/assets/speedups.svg and
README's results.

Both are made from JSON files in docs/results, every peer at its best setting; --check writes nothing and
fails if README is out of date.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.paired import Comparison, compare, load
from benchmarks.results import RESULTS, ROOT, label, panel, where
from outpace.bench.report import plot
from outpace.tables import Table, markdown

README, PLOT = ROOT / "README.md", ROOT / "docs" / "assets" / "speedups.svg"
SECTION = re.compile(r"(<!-- results:begin -->\n).*?(<!-- results:end -->)", re.DOTALL)
AXIS = "speedup over plain decoding"
ENGINE, COMPILED = "engine/engine-cpu.json", "compiled/compiled-cpu.json"
TRANSFORMERS = ("transformers assisted*", "transformers prompt-lookup*")
OTHERS = ("openvino draft*", "openvino prompt-lookup*", "vllm draft_model*", "vllm ngram*")
OURS = ("speculative-sampling", "specinfer", "prompt-lookup")
PANELS: tuple[dict[str, Any], ...] = (
    {
        "title": "temperature 0",
        "file": ENGINE,
        "workload": "all",
        "temperature": 0.0,
        "methods": (*OURS, *TRANSFORMERS),
    },
    {
        "title": "temperature 1",
        "file": ENGINE,
        "workload": "all",
        "temperature": 1.0,
        "methods": (*OURS, *TRANSFORMERS),
    },
    {
        "title": "compiled, temperature 1",
        "file": COMPILED,
        "workload": "all",
        "temperature": 1.0,
        "methods": ("speculative-sampling", "prompt-lookup", *TRANSFORMERS, *OTHERS),
    },
)
COLUMNS = ("Temperature", "Method", "Tokens/s (median)", "Speedup (median of pairs, 95 %)", "Prompts")
NUM_TABLE_PANELS = 2  # README's table of ten rows shows the first panels


def chart(results: Path = RESULTS) -> Any:
    """The figure of speedups, one panel per measurement."""
    files = {spec["file"]: load(results / spec["file"]) for spec in PANELS}
    return plot.bar_chart([each for spec in PANELS if (each := panel(files, spec))], AXIS, reference=1.0)


def section(results: Path = RESULTS) -> str:
    """README's results as Markdown: the conditions, the table, and the commit and command that measured
    them."""
    rows: list[tuple[str, ...]] = []
    specs = PANELS[:NUM_TABLE_PANELS]
    for spec in specs:
        data = load(results / spec["file"])
        for method in spec["methods"]:
            found = compare(data, method, **where(spec))
            if found:
                rows.append(cells(found, spec["temperature"]))
    data = load(results / specs[0]["file"])
    source, settings = data["provenance"], data["settings"]
    prompts = ", ".join(settings["prompts"])
    text = (
        f"`{settings['target']}` on a {source['device']}, {source['threads']} threads, eager PyTorch "
        f"{source['versions']['torch']}, batch {settings['batch']}, up to {settings['max_tokens']} new "
        "tokens; prompts "
        f"of {prompts}, without those whose plain output repeats itself. Each run is paired with plain "
        "decoding of the "
        "same prompt, round and seed: the speedup is the median of the pairs' ratios, not the ratio of two "
        "medians."
    )
    command = " ".join(source["argv"])
    return "\n".join(
        [
            text,
            "",
            markdown(Table("", COLUMNS, tuple(rows))),
            "",
            f"Commit {source['commit']}, {source['date'][:10]}: `{command}`. "
            "Compiled models beside OpenVINO GenAI and vLLM, and the targets that were met and missed: "
            "[results](docs/results/engine.md).",
            "",
        ]
    )


def cells(found: Comparison, temperature: float) -> tuple[str, ...]:
    """The cells of one table row."""
    name = label(found.method)
    if found.tried > 1 and "best of" not in name:
        name += f", best of {found.tried} settings"
    gain = found.ratio
    interval = f"{gain.median:.2f} ({gain.low:.2f} to {gain.high:.2f})" if gain.known else "too few prompts"
    return f"{temperature:g}", name, f"{found.value.median:.1f}", interval, str(found.prompts)


def filled(readme: str, results: Path = RESULTS) -> str:
    """The text of README with its results section replaced by the current one."""
    text = section(results)
    return SECTION.sub(lambda match: match[1] + text + match[2], readme)


def main(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if out of date.")] = False,
) -> None:
    """Write the front page's plot and README's table of results from docs/results."""
    old = README.read_text(encoding="utf-8")
    new = filled(old)
    if check:
        if new != old:
            typer.echo("README's results are out of date: run python -m benchmarks.front_page", err=True)
            raise typer.Exit(1)
        return
    README.write_text(new, encoding="utf-8")
    plot.save(chart(), PLOT)


if __name__ == "__main__":
    typer.run(main)
