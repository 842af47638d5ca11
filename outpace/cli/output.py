"""Output of the subcommands: tables, JSON and status lines."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import typer

NUMBERS = re.compile(r"\[\s*-?[\d.]+(,\s*-?[\d.]+)*\s*\]")


def json_text(value: Any) -> str:
    """A value as indented JSON, with each list of numbers on one line."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return NUMBERS.sub(lambda found: " ".join(found[0].split()), text)


def print_json(value: Any) -> None:
    """Print a value as indented JSON on stdout."""
    typer.echo(json_text(value))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print one table with these column names and rows of text cells."""
    from outpace.tables import Table, print_tables

    print_tables([Table(title, tuple(columns), tuple(map(tuple, rows)))])


def summary(name: str, result: Any) -> str:
    """One line with the speed and acceptance of a request, `result`, and whether the method, `name`, is
    LOSSY."""
    statistics = result.statistics
    drafts = "no drafts"
    if statistics.num_spec_steps:
        drafts = f"mean acceptance length {statistics.mean_acceptance_length:.2f}"
    if predicted := statistics.num_accepted_prediction_tokens + statistics.num_rejected_prediction_tokens:
        accepted = statistics.num_accepted_prediction_tokens
        drafts += f", {accepted} of {predicted} drafted prediction tokens accepted"
    lossy = "" if result.reference is None else f"; LOSSY: the text is that of {result.reference}"
    return (
        f"{name}: {statistics.num_tokens} tokens in {statistics.seconds:.2f} s, "
        f"{statistics.tokens_per_second:.1f} tokens/s, {drafts}, seed {statistics.seed}{lossy}"
    )


def print_status(line: str) -> None:
    """Print a status line on stderr."""
    typer.echo(line, err=True)
