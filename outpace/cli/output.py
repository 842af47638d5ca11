"""What is printed: tables for people, JSON for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import typer

NUMBERS = re.compile(r"\[\s*-?[\d.]+(,\s*-?[\d.]+)*\s*\]")


def print_json(value: Any) -> None:
    """One JSON document, readable: numbers of a list stay on one line."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    typer.echo(NUMBERS.sub(lambda found: " ".join(found[0].split()), text))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """One table of text cells."""
    from outpace.tables import Table, print_tables

    print_tables([Table(title, tuple(columns), tuple(map(tuple, rows)))])


def summary(name: str, statistics: Any) -> str:
    """One line about a request."""
    steps = (
        f"mean acceptance length {statistics.mean_acceptance_length:.2f}"
        if statistics.num_spec_steps
        else "no drafts"
    )
    if predicted := statistics.num_accepted_prediction_tokens + statistics.num_rejected_prediction_tokens:
        steps += (
            f", {statistics.num_accepted_prediction_tokens} of {predicted} drafted prediction tokens accepted"
        )
    return (
        f"{name}: {statistics.num_tokens} tokens in {statistics.seconds:.2f} s, "
        f"{statistics.tokens_per_second:.1f} tokens/s, {steps}, seed {statistics.seed}"
    )


def say(line: str) -> None:
    """What is going on, on the error stream."""
    typer.echo(line, err=True)
