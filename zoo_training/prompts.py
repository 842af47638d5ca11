"""Prompts on which drafters for the zoo's target are trained: `python -m zoo_training.prompts --output FILE`.

A half are beginnings of code unless other kinds are given, the rest are tasks, all from the training split.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from zoo_training import tasks
from zoo_training.corpus import read_corpus

SHORTEST, LONGEST = 80, 500  # characters of a code prompt
KINDS = ("code", "edit", "code", "arithmetic", "code", "chat")


def prompts(number: int, seed: int, kinds: Sequence[str] = KINDS) -> Iterator[dict[str, Any]]:
    """Rows for `outpace train --data`, drawn from a seed, of these kinds in turn."""
    pick, documents = random.Random(seed), read_corpus().train
    for index in range(number):
        kind = kinds[index % len(kinds)]
        if kind == "code":
            yield {"prompt": code(pick.choice(documents), pick)}
        else:
            yield {"messages": tasks.make(kind, pick).messages}


def write_prompts(path: Path, number: int, seed: int, kinds: Sequence[str] = KINDS) -> None:
    """Write prompts as a .jsonl file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in prompts(number, seed, kinds)), encoding="utf-8")


def code(document: str, pick: random.Random) -> str:
    """Some lines from anywhere in a document."""
    lines = document.splitlines(keepends=True)
    start, size = pick.randrange(len(lines)), pick.randint(SHORTEST, LONGEST)
    text = ""
    for line in lines[start:]:
        text += line
        if len(text) >= size:
            break
    return text[:LONGEST] or document[:LONGEST]


def main(
    output: Annotated[Path, typer.Option(help="File to write.")],
    number: Annotated[int, typer.Option(min=2, help="Prompts.")] = 3000,
    seed: Annotated[int, typer.Option(help="Of the choice of prompts.")] = 0,
    kinds: Annotated[str, typer.Option(help="Kinds of prompts, in turn.")] = ",".join(KINDS),
) -> None:
    """Write prompts for `outpace train --target zoo:target --data FILE`."""
    given = kinds.split(",")
    if unknown := set(given) - set(KINDS):
        raise typer.BadParameter(
            f"there are no prompts of {min(unknown)}: use {', '.join(sorted(set(KINDS)))}"
        )
    write_prompts(output, number, seed, given)
    typer.echo(f"{output} has {number} prompts")


if __name__ == "__main__":
    typer.run(main)
