"""`outpace zoo`: the small models in the package."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from outpace.cli.failures import Debug, plainly
from outpace.cli.options import Json
from outpace.cli.output import print_json, print_table

app = typer.Typer(help="The small models in the package.", no_args_is_help=True)


@app.command("list")
@plainly
def list_(json: Json = False, debug: Debug = False) -> None:
    """The models, with their sizes."""
    from outpace import zoo

    found = [
        {"name": f"zoo:{name}", "folder": str(zoo.path(name)), "card": zoo.card(name)} for name in zoo.names()
    ]
    if json:
        print_json({"models": found})
        return
    print_table(("model", "card"), [(each["name"], brief(each["card"])) for each in found])


@app.command("show")
@plainly
def show(name: Annotated[str, typer.Argument(help="zoo:target, or target.")], debug: Debug = False) -> None:
    """A model's card: data, training, losses, how to build it again."""
    from outpace import zoo

    print_json(zoo.card(name) | {"folder": str(zoo.path(name))})


def brief(card: Any) -> str:
    """The few facts of a card that fit a line."""
    named = ("parameters", "vocabulary", "held_out_loss", "tokens_seen", "device")
    return ", ".join(f"{name.replace('_', ' ')} {card[name]}" for name in named if name in card)
