"""What mkdocs adds to the pages: a page for each method and pieces of source, both read from the code at build time."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = re.compile(r"^<!-- source: (?P<path>\S+) (?P<name>\S+) -->$", re.MULTILINE)
METHODS = "<!-- methods -->"


def source_of(path: str, name: str) -> str:
    """The text of a function or class, named as in the file (`Session.commit` for a method)."""
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


def recipes() -> dict[str, Any]:
    from outpace import recipes as catalogue

    return dict(sorted(catalogue.find().items()))


def linked(paper: str) -> str:
    if re.fullmatch(r"\d{4}\.\d{4,5}(v\d+)?", paper):
        return f"[arXiv {paper}](https://arxiv.org/abs/{paper})"
    url = paper if paper.startswith("http") else f"https://{paper}"
    return f"[{paper}]({url})" if re.match(r"[\w.-]+\.\w+/", paper) or paper.startswith("http") else paper


def method_page(recipe: Any) -> str:
    """A method's page: the docstring of its file, its options and its source."""
    module = sys.modules[recipe.build.__module__]
    doc = inspect.cleandoc(module.__doc__ or recipe.summary)
    rest = doc.partition("\n")[2].strip()
    lines = [f"# {recipe.name}", "", recipe.summary, "", rest, "", f"Paper: {linked(recipe.paper)}", ""]
    lines += [f'Use it with `--method {recipe.name}`, or `method="{recipe.name}"` in Python.', ""]
    options = {
        name: parameter
        for name, parameter in inspect.signature(recipe.build).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    if options:
        lines += ["| Option | Type | Default |", "|---|---|---|"]
        for name, parameter in options.items():
            kind = parameter.annotation if isinstance(parameter.annotation, str) else str(parameter.annotation)
            default = "required" if parameter.default is inspect.Parameter.empty else f"`{parameter.default!r}`"
            lines.append(f"| `{name.replace('_', '-')}` | `{kind.replace('|', chr(92) + '|')}` | {default} |")
    path = Path(inspect.getsourcefile(module) or "")
    lines += ["", f"## {path.name}", "", "````python", path.read_text(encoding="utf-8").rstrip(), "````", ""]
    return "\n".join(lines)


def method_table(found: dict[str, Any]) -> str:
    rows = [f"| [{name}]({name}.md) | {recipe.summary} |" for name, recipe in found.items()]
    return "\n".join(["| Method | What it does |", "|---|---|", *rows])


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for name, recipe in recipes().items():
        files.append(File.generated(config, f"methods/{name}.md", content=method_page(recipe)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    def shown(match: re.Match[str]) -> str:
        return f"```python\n{source_of(match['path'], match['name'])}\n```"

    if METHODS in markdown:
        markdown = markdown.replace(METHODS, method_table(recipes()))
    return SOURCE.sub(shown, markdown)
