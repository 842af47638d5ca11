"""Further prompts for published measurements: `python -m benchmarks.prompt_sets FOLDER` writes chat.jsonl,
questions and short conversations that the zoo's models have not seen, and random.jsonl, words in no order, of
which nothing can be predicted."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from zoo_training import tasks

NUM_PROMPTS = 48
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def chats(generator: random.Random) -> Iterator[dict[str, Any]]:
    """Held-out chat tasks: the user's turns of each."""
    for _ in range(NUM_PROMPTS):
        task = tasks.make("chat", generator, held_out=True)
        yield {"turns": [turn for index, turn in enumerate(task.turns) if index % 2 == 0]}


def random_words(generator: random.Random) -> Iterator[dict[str, Any]]:
    """Words of random letters."""
    for _ in range(NUM_PROMPTS):
        words = ["".join(generator.choices(LETTERS, k=generator.randint(2, 9))) for _ in range(40)]
        yield {"prompt": " ".join(words)}


def write(folder: Path) -> None:
    """Write both files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("chat", chats(random.Random(0))), ("random", random_words(random.Random(0)))):
        (folder / f"{name}.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
        )


def main(folder: Annotated[Path, typer.Argument(help="Folder for the files.")]) -> None:
    """Write prompts for `outpace bench --prompts`."""
    write(folder)
    typer.echo(f"{folder} has chat.jsonl and random.jsonl")


if __name__ == "__main__":
    typer.run(main)
