"""`outpace list`: the catalogue of methods."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from outpace.cli.failures import Debug, report_failures
from outpace.cli.options import Json
from outpace.cli.output import print_json, print_table
from outpace.recipes import entries, of_family


@report_failures
def list_methods(
    recipe: Annotated[Path | None, typer.Option(help="Show a recipe file of your own as well.")] = None,
    family: Annotated[str | None, typer.Option(help="Only methods of this family.")] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List all methods with guarantee, family and a one-line summary."""
    names = None if family is None else of_family(family)
    found = [entry for entry in entries(recipe) if names is None or entry.name in names]
    if json:
        print_json({"recipes": [asdict(entry) for entry in found]})
        return
    rows = [(entry.name, entry.guarantee, entry.family, entry.summary) for entry in found]
    print_table(("method", "guarantee", "family", "what it does"), rows)
