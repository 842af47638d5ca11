"""`outpace show`: one method, its paper and its options."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outpace.cli.failures import Debug, report_failures
from outpace.cli.options import Json
from outpace.cli.output import print_json, print_table
from outpace.cli.recipe_options import flag, shown, type_name

if TYPE_CHECKING:
    from outpace.core.contracts import Recipe


# what the guarantee of a method refers to
TARGET = "the model as it is loaded: --weights and --kv-cache round it, and give the rounded model's texts"
LOSSY = "not the target's: that of an approximation, which the description above states"


@report_failures
def show(
    name: Annotated[str, typer.Argument(help="A method of `outpace list`, or a recipe file.")],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show one method: description, paper and options."""
    from outpace.recipes import from_file, get

    recipe = from_file(name) if name.endswith(".py") else get(name)
    from outpace.core.contracts import Guarantee

    module = sys.modules[recipe.build.__module__]
    options = [option(recipe, parameter) for parameter in recipe.options.values()]
    found = {
        "name": recipe.name,
        "paper": recipe.paper,
        "guarantee": recipe.guarantee.value,
        "target": TARGET,
        "exact_with": dict(recipe.exact_with),
        "presets": {name: dict(values) for name, values in recipe.presets.items()},
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
    typer.echo(f"paper   {recipe.paper}\nfile    {module.__file__}\ntarget  {TARGET}\n")
    if recipe.guarantee is Guarantee.LOSSY:
        limit = " ".join(given(name, value) for name, value in recipe.exact_with.items())
        typer.echo(f"output  {LOSSY}\nexact   with {limit}\n")
    for name, values in recipe.presets.items():
        preset = " ".join(given(option, value) for option, value in values.items())
        typer.echo(f"--preset {name} stands for {preset}\n")
    if options:
        rows = [
            (f"--{flag(each['name'])}", each["type"], each["default"] or "needed", each["help"])
            for each in options
        ]
        print_table(("option", "type", "default", "meaning"), rows)


def given(name: str, value: Any) -> str:
    """An option with its value, as it is typed."""
    if isinstance(value, bool):
        return f"--{flag(name)}" if value else f"--no-{flag(name)}"
    return f"--{flag(name)} {shown(value)}"


def option(recipe: Recipe, parameter: inspect.Parameter) -> dict[str, Any]:
    """Name, type, default and help text of an option of a recipe, as JSON values."""
    return {
        "name": parameter.name,
        "type": type_name(parameter.annotation),
        "default": None if parameter.default is parameter.empty else shown(parameter.default),
        "help": recipe.option_help.get(parameter.name, ""),
    }
