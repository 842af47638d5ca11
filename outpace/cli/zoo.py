"""`outpace zoo`: the small models in the package."""

from __future__ import annotations

from pathlib import Path
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

    found = [{"name": f"zoo:{name}", "folder": str(zoo.path(name)), "card": zoo.card(name)} for name in zoo.names()]
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


@app.command("build")
@plainly
def build(
    name: Annotated[
        str,
        typer.Argument(
            help="target, the draft that learns from it, or draft-2k or draft-bytes, which have other tokens."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for models and checkpoints.")] = Path("zoo-build"),
    steps: Annotated[int | None, typer.Option(min=1, help="End after this many steps.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Or after so much training time.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Of weights and data order.")] = 0,
    bfloat16: Annotated[bool, typer.Option("--bfloat16", help="Products in bfloat16, if the hardware has it.")] = False,
    note: Annotated[str, typer.Option(help="A sentence for the card.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
    debug: Debug = False,
) -> None:
    """Train a model of the zoo from scratch, from text that every machine has."""
    from outpace.zoo.build import build as train

    folder = train(
        name.removeprefix("zoo:"),
        out,
        steps=steps,
        minutes=minutes,
        device=device,
        seed=seed,
        bfloat16=bfloat16,
        resume=resume,
        note=note,
    )
    typer.echo(f"{folder} is ready")


def brief(card: Any) -> str:
    """The few facts of a card that fit a line."""
    named = ("parameters", "vocabulary", "held_out_loss", "tokens_seen", "device")
    return ", ".join(f"{name.replace('_', ' ')} {card[name]}" for name in named if name in card)
