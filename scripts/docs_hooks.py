"""mkdocs hooks that generate pages and sections from the code and from docs/results at build time.

Generated pages: one for each method, and the command-line reference. Markers replaced in other pages:
`<!-- methods -->` (table of methods), `<!-- evidence -->` (what shows their claims), `<!-- source: FILE
NAME -->` (source of a function or class), `<!-- speedups: FILE METHOD,METHOD -->` (speedups of methods in a
file of docs/results). Entries of the log get anchors.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import evidence
from methods_table import needs
from mkdocs.structure.files import File
from typer.testing import CliRunner

from benchmarks.paired import Result, compare, load
from outpace import recipes
from outpace.cli import app
from outpace.cli.commands.show import given
from outpace.cli.recipe_options import type_name
from outpace.core.contracts import Recipe

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results"
# on a forge, where the source is not filled in, the line below is a link to it
SOURCE = re.compile(r"^<!-- source: (?P<path>\S+) (?P<name>\S+) -->\n\[[^\]]*\]\([^)]*\)$", re.MULTILINE)
EVIDENCE = "<!-- evidence -->"
LOG = "log.md"
# with the table that scripts/speedup_tables.py wrote below it, and its end
SPEEDUPS = re.compile(
    r"^<!-- speedups: (?P<path>\S+) (?P<methods>\S+) -->\n.*?^<!-- speedups:end -->$",
    re.MULTILINE | re.DOTALL,
)
HELP = "<!-- help -->"
# in the repository pages link to a method's file, on the site to its page
RECIPE = re.compile(r"\]\((?P<up>(?:\.\./)+)outpace/recipes/\w+/(?P<name>\w+)(?:/recipe)?\.py\)")
VERB = re.compile(r"^  ([a-z][a-z-]*)(?:  |$)", re.MULTILINE)


def source_of(path: str, name: str) -> str:
    """Source code of a function or class in a file; name: qualified name, such as `Session.commit`.

    Raises KeyError if the file does not define it.
    """
    text = (ROOT / path).read_text(encoding="utf-8")
    scope: ast.AST = ast.parse(text)
    for part in name.split("."):
        named = [node for node in ast.iter_child_nodes(scope) if getattr(node, "name", None) == part]
        if not named:
            raise KeyError(f"{path} has no {name}")
        scope = named[0]
    assert isinstance(scope, ast.FunctionDef | ast.ClassDef)
    first = min([scope.lineno, *[decorator.lineno for decorator in scope.decorator_list]])
    lines = text.splitlines()[first - 1 : scope.end_lineno]
    return inspect.cleandoc("\n" + "\n".join(lines))


def linked(paper: str) -> str:
    """A Markdown link for an arXiv number or URL; any other text unchanged."""
    if number := re.fullmatch(r"(?:arXiv:)?(\d{4}\.\d{4,5}(?:v\d+)?)", paper):
        return f"[arXiv:{number[1]}](https://arxiv.org/abs/{number[1]})"
    if re.match(r"(https?://)?[\w-]+(\.[\w-]+)+/", paper):
        return f"[{paper}]({paper if '://' in paper else 'https://' + paper})"
    return paper


def papers_table(name: str) -> list[str]:
    """Markdown lines: table of the figures reported in the method's paper; empty if there are none."""
    reported = json.loads((ROOT / "docs/methods/papers.json").read_text(encoding="utf-8")).get(name, [])
    if not reported:
        return []
    rows = [f"| {figure} | {setting} | {linked(paper)} |" for figure, setting, paper in reported]
    return ["## In the paper", "", "| Figure | Measured on | Source |", "|---|---|---|", *rows, ""]


@cache
def load_once(path: Path) -> Result:
    """Load a result file; cached, because several pages show the same file."""
    return load(path)


def measured_tables(name: str) -> list[str]:
    """Markdown lines: one table per result file in docs/results that has the method; empty if none has."""
    lines: list[str] = []
    for path in sorted(RESULTS.rglob("*.json.gz")):
        result = load_once(path)
        if str(result.get("schema")).startswith("outpace-bench/"):
            lines += measurement_table(name, path, result)
    return ["## Measured here", "", *lines] if lines else []


def speedup(result: Result, method: str, workload: str, temperature: float) -> str:
    """A method's median speedup with its 95 % interval; "-" if it was not measured on enough varied
    prompts."""
    found = compare(result, method, workload=workload, temperature=temperature)
    if found is None or not found.ratio.known:
        return "-"
    return f"{found.ratio.median:.2f} ({found.ratio.low:.2f} to {found.ratio.high:.2f})"


def conditions(result: Result) -> str:
    """Conditions of a measurement: compiled or eager, batch size, device and date."""
    settings, source = result["settings"], result["provenance"]
    how = "compiled" if settings.get("compile") else "eager PyTorch"
    return f"{how}, batch {settings['batch']}, {source['device']}, {source['date'][:10]}"


def measurement_table(name: str, path: Path, result: Result) -> list[str]:
    """Markdown lines: the method's speedups in one result file of `outpace bench`, one row per prompt set."""
    settings = result["settings"]
    temperatures = settings["temperatures"]
    rows: list[str] = []
    for label in dict.fromkeys(run["method"] for run in result["runs"]):
        method, _, options = label.partition(":")
        for workload in settings["prompts"] if method == name else ():
            speedups = [speedup(result, label, workload, temperature) for temperature in temperatures]
            if any(cell != "-" for cell in speedups):
                rows.append(f"| {workload} | {' | '.join(speedups)} | {options or 'defaults'} |")
    if not rows:
        return []
    page = path.relative_to(RESULTS).parts[0]
    head = " | ".join(f"Speedup at temperature {temperature:g}" for temperature in temperatures)
    return [
        f"[{page}/{path.name}](../results/{page}.md): {conditions(result)}.",
        "",
        f"| Prompts | {head} | Options |",
        "|---|" + "---:|" * len(temperatures) + "---|",
        *rows,
        "",
    ]


def method_page(recipe: Recipe, guarantee: str) -> str:
    """Markdown page of a method: docstring of its recipe file, options, measurements and source."""
    module = sys.modules[recipe.build.__module__]
    rest = inspect.cleandoc(module.__doc__ or "").partition("\n")[2].strip()
    lines = [f"# {recipe.name}", "", recipe.summary, "", rest, ""]
    lines += [
        f"Promise: **{guarantee.upper()}**. Needs, besides the target: {needs(recipe)}. "
        f"Paper: {linked(recipe.paper)}. Family: {recipe.family}.",
        "",
    ]
    lines += [f'Use it with `--method {recipe.name}`, or `method="{recipe.name}"` in Python.', ""]
    if recipe.options:
        meanings = recipe.option_help
        lines += ["| Option | Meaning | Type | Default |", "|---|---|---|---|"]
        for name, parameter in recipe.options.items():
            kind = type_name(parameter.annotation)
            default = (
                "required" if parameter.default is inspect.Parameter.empty else f"`{parameter.default!r}`"
            )
            option = name.replace("_", "-")
            lines.append(f"| `{option}` | {meanings.get(name, '')} | `{kind}` | {default} |")
    for name, values in recipe.presets.items():
        preset = " ".join(given(option, value) for option, value in values.items())
        lines += ["", f"`--preset {name}` stands for `{preset}`."]
    path = Path(inspect.getsourcefile(module) or "")
    lines += ["", *evidence.section(recipe.name), *measured_tables(recipe.name), *papers_table(recipe.name)]
    lines += [f"## {path.name}", "", "````python", path.read_text(encoding="utf-8").rstrip(), "````", ""]
    return "\n".join(lines)


def speedups_table(path: str, methods: Iterable[str]) -> str:
    """Markdown table: speedups over plain decoding in a result file, all prompt sets pooled."""
    result = load_once(RESULTS / path)
    temperatures = result["settings"]["temperatures"]
    head = " | ".join(f"Speedup at temperature {temperature:g} (95 %)" for temperature in temperatures)
    lines = [f"| Method | {head} |", "|---|" + "---:|" * len(temperatures)]
    for method in methods:
        cells = [speedup(result, method, "all", temperature) for temperature in temperatures]
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    prompts = ", ".join(result["settings"]["prompts"])
    return "\n".join([*lines, "", f"Prompts: {prompts}; {conditions(result)}."])


def help_of(path: list[str]) -> str:
    """The output of `outpace PATH --help`; RuntimeError if the command fails."""
    result = CliRunner().invoke(app, [*path, "--help"], prog_name="outpace", env={"COLUMNS": "100"})
    if result.exit_code:
        raise RuntimeError(f"outpace {' '.join(path)} --help failed: {result.output}")
    return result.output.strip()


def command_line_help() -> str:
    """Markdown: the help of every command and subcommand."""
    lines: list[str] = []
    waiting: list[list[str]] = [[]]
    while waiting:
        path = waiting.pop(0)
        text = help_of(path)
        lines += ["#" * min(2 + len(path[1:]), 3) + f" outpace {' '.join(path)}".rstrip(), ""]
        lines += ["```text", text, "```", ""]
        subcommands = text.partition("\nCommands:\n")[2]
        waiting[:0] = [[*path, verb] for verb in VERB.findall(subcommands)]
    return "\n".join(lines)


def on_files(files: Any, config: Any) -> Any:
    found = recipes.find()
    for entry in recipes.entries():
        content = method_page(found[entry.name], entry.guarantee)
        files.append(File.generated(config, f"methods/{entry.name}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    def source(match: re.Match[str]) -> str:
        return f"```python\n{source_of(match['path'], match['name'])}\n```"

    def speedups(match: re.Match[str]) -> str:
        return speedups_table(match["path"], match["methods"].split(","))

    def recipe(match: re.Match[str]) -> str:
        folder = "methods/" if match["up"] == "../" else ""  # pages of methods/ link from there
        return f"]({folder}{match['name'].replace('_', '-')}.md)"

    markdown = RECIPE.sub(recipe, markdown)
    if HELP in markdown:
        markdown = markdown.replace(HELP, command_line_help())
    if EVIDENCE in markdown:
        markdown = markdown.replace(EVIDENCE, evidence.tables())
    if page.file.src_uri == LOG:
        markdown = evidence.with_anchors(markdown)
    return SPEEDUPS.sub(speedups, SOURCE.sub(source, markdown))
