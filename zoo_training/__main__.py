"""`python -m zoo_training MODEL`: train a zoo model from scratch on Python's standard library and tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zoo_training.build import build
from zoo_training.models import SHAPES


def main(
    name: Annotated[
        str,
        typer.Argument(help=f"One of {', '.join(SHAPES)}; draft learns from target."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for models and checkpoints.")] = Path("zoo-build"),
    steps: Annotated[int | None, typer.Option(min=1, help="Stop after this many steps.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Stop after this much training time.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Of weights and data order.")] = 0,
    bfloat16: Annotated[bool, typer.Option("--bfloat16", help="Matrix products in bfloat16.")] = False,
    note: Annotated[str, typer.Option(help="A sentence for the model card.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
) -> None:
    """Train a model of the zoo from scratch on Python's standard library and generated tasks."""
    folder = build(
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


if __name__ == "__main__":
    typer.run(main)
