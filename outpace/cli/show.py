"""`outpace show`: one method, its options and where to read it."""

from __future__ import annotations

import inspect
import re
import sys
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from outpace.cli.failures import Debug, plainly
from outpace.cli.options import Json
from outpace.cli.output import print_json, print_table
from outpace.cli.recipe_options import shown


@plainly
def show(
    name: Annotated[str, typer.Argument(help="A method of `outpace list`, or a recipe file.")],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """One method: its paper, its options, its file."""
    from outpace.recipes import from_file, get

    recipe = from_file(name) if name.endswith(".py") else get(name)
    module = sys.modules[recipe.build.__module__]
    options = [option(parameter) for parameter in recipe.options.values()]
    found = {
        "name": recipe.name,
        "paper": recipe.paper,
        "guarantee": recipe.guarantee.value,
        "family": recipe.family,
        "summary": recipe.summary,
        "description": inspect.getdoc(module) or "",
        "options": options,
        "file": module.__file__,
    }
    if json:
        print_json(found)
        return
    typer.echo(f"{recipe.name}  ({recipe.guarantee.value}, {recipe.family})\n\n{found['description']}\n")
    typer.echo(f"paper  {recipe.paper}\nfile   {module.__file__}\n")
    if options:
        rows = [
            (f"--{each['name'].replace('_', '-')}", each["type"], each["default"] or "needed")
            for each in options
        ]
        print_table(("option", "type", "default"), rows)


def option(parameter: inspect.Parameter) -> dict[str, Any]:
    """An option as a user reads it."""
    return {
        "name": parameter.name,
        "type": type_of(parameter.annotation),
        "default": None if parameter.default is parameter.empty else shown(parameter.default),
    }


def type_of(annotation: Any) -> str:
    """An annotation without the names of modules."""
    if isinstance(annotation, str):
        return annotation
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(type_of, get_args(annotation)))
    if get_origin(annotation) is Literal:
        return " | ".join(map(repr, get_args(annotation)))
    if annotation is type(None):
        return "None"
    return re.sub(r"\b\w+\.(?=\w)", "", inspect.formatannotation(annotation))
