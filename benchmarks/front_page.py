"""Plot and table of the front page: `python -m benchmarks.front_page` writes docs/assets/speeds.svg and
README's results.

Both are made from JSON files in docs/results, every peer at its best setting; --check writes nothing and
fails if README is out of date.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import plot
from benchmarks.paired import Comparison, compare, load
from benchmarks.results import RESULTS, ROOT, label, panel, where
from outpace.tables import Table, markdown

README, PLOT = ROOT / "README.md", ROOT / "docs" / "assets" / "speeds.svg"
SECTION = re.compile(r"(<!-- results:begin -->\n).*?(<!-- results:end -->)", re.DOTALL)
AXIS = "tokens per second, temperature 0"
ENGINE, ENGINES = "engine/engine-cpu.json.gz", "cpu-engines-113m/{weights}-113m-cpu.json.gz"
TRANSFORMERS = ("transformers assisted*", "transformers prompt-lookup*")
OURS = ("speculative-sampling", "specinfer", "prompt-lookup")
# README's table: its files and rows
TABLES: tuple[dict[str, Any], ...] = tuple(
    {
        "file": ENGINE,
        "workload": "all",
        "temperature": temperature,
        "methods": (*OURS, *TRANSFORMERS),
    }
    for temperature in (0.0, 1.0)
)
HEAD, AUTO = "eagle:tree=chain,head=out/models/hass-113m", "auto:head=out/models/hass-113m"
# README's plot: method -> its name there
BARS = {
    "plain": "outpace, plain",
    "speculative-sampling": "outpace, draft model",
    HEAD: "outpace, draft head",
    "prompt-lookup:depth=5": "outpace, lookups of 5 tokens",
    "auto": "outpace, auto with draft model",
    AUTO: "outpace, auto with draft head",
    "openvino plain": "OpenVINO GenAI, plain",
    "openvino draft, best of 2 settings": "OpenVINO GenAI, draft model",
    "openvino prompt-lookup, best of 2 settings": "OpenVINO GenAI, prompt lookup",
    "llamacpp plain": "llama.cpp, plain",
    "llamacpp draft, best of 6 settings": "llama.cpp, draft model",
    "llamacpp ngram, best of 6 settings": "llama.cpp, n-grams",
    "vllm plain, best of 2 settings": "vLLM, plain",
    "vllm draft_model, best of 4 settings": "vLLM, draft model",
    "vllm ngram, best of 4 settings": "vLLM, n-grams",
}
PANELS: tuple[dict[str, Any], ...] = tuple(
    {
        "title": f"113M parameters, {weights}",
        "file": ENGINES.format(weights=weights),
        "rows": [
            {
                "label": label,
                "select": {"method": method, "workload": "all", "temperature": 0.0, "selection": "all"},
                "value": "tokens_per_second",
                "peer": not label.startswith("outpace"),
            }
            for method, label in BARS.items()
        ],
    }
    for weights in ("bfloat16", "int8", "int4")
)
COLUMNS = ("Temperature", "Method", "Tokens/s (median)", "Speedup (median of pairs, 95 %)", "Prompts")


def chart(results: Path = RESULTS) -> Any:
    """The figure of speeds, one panel per precision of the weights."""
    files = {spec["file"]: load(results / spec["file"]) for spec in PANELS}
    return plot.bar_chart([each for spec in PANELS if (each := panel(files, spec))], AXIS)


def section(results: Path = RESULTS) -> str:
    """README's results as Markdown: the conditions, the table, and the commit and command that measured
    them."""
    rows: list[tuple[str, ...]] = []
    for spec in TABLES:
        data = load(results / spec["file"])
        for method in spec["methods"]:
            found = compare(data, method, **where(spec))
            if found:
                rows.append(cells(found, spec["temperature"]))
    data = load(results / ENGINE)
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
            "Goals that were met and missed: [results](docs/results/engine.md).",
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
