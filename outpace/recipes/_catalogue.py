"""The catalogue of recipes and their options, read from source files: importing recipes would import torch,
which takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import Parameter
from pathlib import Path
from typing import Any

from outpace.core.recipe import help_of


@dataclass(frozen=True, slots=True)
class Entry:
    """What `outpace list` prints of one recipe; read from its source file without importing it."""

    name: str
    paper: str
    guarantee: str  # exact, greedy or lossy
    summary: str
    family: str


@dataclass(frozen=True, slots=True)
class RecipeSource:
    """The options of a recipe as its source file states them; the fields are those of a `Recipe`."""

    name: str
    options: Mapping[str, Parameter]  # annotations are text
    option_help: Mapping[str, str]
    presets: Mapping[str, Mapping[str, object]]


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
    for node, mark in marked(tree):
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


def marked(tree: ast.Module) -> list[tuple[ast.FunctionDef, ast.Call]]:
    """The functions of a module that are marked as recipes, with the calls that mark them."""
    return [
        (node, mark)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        for mark in node.decorator_list
        if isinstance(mark, ast.Call) and called(mark) == "recipe"
    ]


def options_in(path: Path) -> RecipeSource | None:
    """The options of the recipe in a file. None if the file has not exactly one recipe, or a default or a
    preset that is no constant, or cannot be read."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = marked(tree)
    if len(found) != 1:
        return None
    (function, mark), options = found[0], dict[str, Parameter]()
    for given, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        value: object = Parameter.empty
        if default is not None:
            try:
                value = value_of(default, constants)
            except ValueError:
                return None
        annotation = ast.unparse(given.annotation) if given.annotation else ""
        options[given.arg] = Parameter(
            given.arg, Parameter.KEYWORD_ONLY, default=value, annotation=annotation
        )
    given_presets = next((each.value for each in mark.keywords if each.arg == "presets"), ast.Dict([], []))
    try:
        presets = value_of(given_presets, constants)
    except ValueError:
        return None
    about = help_of(ast.get_docstring(function, clean=False) or "")
    return RecipeSource(function.name.replace("_", "-"), options, about, presets)


def value_of(node: ast.expr, constants: Mapping[str, ast.expr]) -> Any:
    """The value of a literal, in which a dictionary's values may be constants of the module. ValueError for
    another expression."""
    if isinstance(node, ast.Name) and node.id in constants:
        return ast.literal_eval(constants[node.id])
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) for key in node.keys if key is not None]
        return dict(zip(keys, (value_of(each, constants) for each in node.values), strict=True))
    return ast.literal_eval(node)
