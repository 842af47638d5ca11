"""Right and wrong answers to arithmetic tasks for `outpace train judge-decoding`:
`python -m zoo_training.marked_answers --output FILE`. In a wrong one a digit is changed and marked."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from zoo_training import arithmetic


def rows(number: int, seed: int, held_out: bool = False) -> Iterator[dict[str, Any]]:
    """Rows of data, every second one with an error, drawn from a seed."""
    pick = random.Random(f"{seed} marked answers")
    for index in range(number):
        prompt = arithmetic.make(pick, held_out)
        row: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
        answer = arithmetic.solve(prompt)
        if index % 2:
            at = pick.choice([found.start() for found in re.finditer(r"\d", answer)])
            digit = pick.choice([each for each in "0123456789" if each != answer[at]])
            answer = answer[:at] + digit + answer[at + 1 :]
            row["error"] = [at, at + 1]
        yield row | {"answer": answer}


def main(
    output: Annotated[Path, typer.Option(help="File to write.")],
    number: Annotated[int, typer.Option(min=2, help="Answers.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the choice of tasks and errors.")] = 0,
) -> None:
    """Write marked answers for `outpace train judge-decoding --target zoo:target --data FILE`."""
    output.write_text("".join(json.dumps(row) + "\n" for row in rows(number, seed)), encoding="utf-8")
    typer.echo(f"{output} has {number} answers")


if __name__ == "__main__":
    typer.run(main)
