"""The catalogue of recipes, read from their source files: importing them would import torch, which takes
seconds."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """What `outpace list` prints of one recipe; read from its source file without importing it."""

    name: str
    paper: str
    guarantee: str  # exact, greedy or lossy
    summary: str
    family: str


def catalogue(files: Mapping[str, Path]) -> list[Entry]:
    """One entry per recipe file, in the order of `files` (name -> file)."""
    return [read(name, path) for name, path in files.items()]


def source_of(module: str) -> Path | None:
    """The source file of a module, found without importing the module; None if there is none."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # the parent package is missing or is not a package
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def read(name: str, path: Path) -> Entry:
    """The catalogue entry of a recipe file, from its syntax tree; `name` is used if it defines no recipe."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    summary = (ast.get_docstring(tree) or "").partition("\n")[0]
    fields = {"paper": "", "family": "", "guarantee": "exact"}
    for node in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and called(mark) == "recipe":
                name = node.name.replace("_", "-")
                for keyword in mark.keywords:
                    if isinstance(keyword.value, ast.Constant):
                        fields[keyword.arg or ""] = str(keyword.value.value)
                    elif isinstance(keyword.value, ast.Attribute):
                        fields[keyword.arg or ""] = keyword.value.attr.lower()
    return Entry(name, fields["paper"], fields["guarantee"], summary, fields["family"])


def called(call: ast.Call) -> str:
    """The last part of the called name: `recipe` for `contracts.recipe(...)`."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
