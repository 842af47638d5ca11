"""Further prompts for published measurements: `python -m benchmarks.prompt_sets FOLDER` writes chat.jsonl,
questions and short conversations that the zoo's models have not seen; random.jsonl, words in no order, of
which nothing can be predicted; and arithmetic.jsonl, edit.jsonl and code.jsonl, with which no constant of
`auto` was chosen."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from outpace.bench.measure.workload import load_items
from zoo_training import tasks

NUM_PROMPTS = 48
CHOSEN_WITH = (12, 16)  # numbers of prompts, spread over a built-in set, with which constants were chosen
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


def unused_tasks(kind: str) -> Iterator[dict[str, Any]]:
    """Held-out tasks of a kind that are not in its built-in set."""
    num_built_in = len(load_items(kind))
    for task in tasks.held_out(kind, num_built_in + NUM_PROMPTS)[num_built_in:]:
        yield {"turns": list(task.turns)}


def unused_code() -> Iterator[dict[str, Any]]:
    """The prompts of the built-in set that are left out where constants are chosen."""
    used = {item.id for number in CHOSEN_WITH for item in load_items("code", number)}
    for item in load_items("code"):
        if item.id not in used:
            yield {"id": item.id, "prompt": item.turns[0]}


def write(folder: Path) -> None:
    """Write all files."""
    folder.mkdir(parents=True, exist_ok=True)
    sets = {
        "chat": chats(random.Random(0)),
        "random": random_words(random.Random(0)),
        "arithmetic": unused_tasks("arithmetic"),
        "edit": unused_tasks("edit"),
        "code": unused_code(),
    }
    for name, rows in sets.items():
        (folder / f"{name}.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
        )


def main(folder: Annotated[Path, typer.Argument(help="Folder for the files.")]) -> None:
    """Write prompts for `outpace bench --prompts`."""
    write(folder)
    typer.echo(f"{folder} has {', '.join(sorted(path.name for path in folder.glob('*.jsonl')))}")


if __name__ == "__main__":
    typer.run(main)
