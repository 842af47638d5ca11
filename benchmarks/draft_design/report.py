"""The results as JSON and as a table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks.draft_design.design import Design, Row

COLUMNS = (
    "batch",
    "draft model",
    "parameters",
    "ms per draft token",
    "draft tokens",
    "ms per step",
    "tokens per step",
    "tokens/s of a row",
    "acceptance needed",
)
NOTE = (
    "Tokens per step count the bonus token. Times are predicted from measured forwards and the overhead of "
    "{reference}. Draft models that were given: the draft length with the most tokens per second, from the "
    "acceptance of each position at drafts of {longest} tokens, temperature {temperature:g} and about "
    "{context} tokens of context. Shapes (layers x width) with random weights: the tokens per step that they "
    "must reach to be as fast as the best of these, or as plain decoding if that is faster, with the draft "
    "length that needs the smallest acceptance rate. Another context, temperature or kind of prompts has "
    "other numbers."
)


def report(design: Design, known: dict[str, Any]) -> dict[str, Any]:
    """The JSON report: provenance, settings, acceptance by position, predictions and their errors."""
    best = {size: design.best(size) for size in design.plain}
    return {
        "schema": "outpace-draft-design/1",
        "provenance": known,
        "settings": design.settings,
        "notes": note(design),
        "acceptance": {
            name: {"rates": each.acceptance, "tested": each.tested}
            for name, each in design.acceptance.items()
        },
        "plain_tokens_per_second": design.plain,
        "results": [
            {
                "draft": row.candidate.name,
                "batch": row.rows,
                "layers": row.candidate.shape.num_layers,
                "width": row.candidate.shape.width,
                "heads": row.candidate.shape.num_heads,
                "parameters": row.candidate.parameters,
                "draft_seconds": row.time.draft,
                "token_overhead_seconds": row.time.token_overhead,
                "step_overhead_seconds": row.time.step_overhead,
                "step_seconds": {str(n): row.time(n) for n in design.settings["lengths"]},
                "tokens_per_second": row.speeds,
                "best": row.best and {**asdict(row.best), "tokens_per_second": row.best.speed},
                "needed": row.needed and asdict(row.needed),
            }
            for row in design.rows
        ],
        "best": {
            size: None
            if row is None or row.best is None
            else {"draft": row.candidate.name, **asdict(row.best)}
            for size, row in best.items()
        },
        "held_out": [{**asdict(check), "error": check.error} for check in design.checks],
    }


def note(design: Design) -> str:
    """What the numbers mean."""
    given = design.settings
    return NOTE.format(
        reference=given["reference"],
        longest=max(given["lengths"]),
        temperature=given["temperature"],
        context=given["context"],
    )


def cells(row: Row) -> tuple[str, ...]:
    """A table row with the columns COLUMNS."""
    if row.best is not None:
        length, tokens, speed, rate = row.best.length, f"{row.best.tokens:.2f}", f"{row.best.speed:.1f}", "-"
    else:
        assert row.needed is not None
        length, speed = row.needed.length, "-"
        tokens = f"{row.needed.tokens:.2f} needed"
        rate = "cannot" if row.needed.rate is None else f"{row.needed.rate:.2f}"
    return (
        str(row.rows),
        row.candidate.name,
        f"{row.candidate.parameters:,}",
        f"{1000 * (row.time.draft + row.time.token_overhead):.2f}",
        str(length),
        f"{1000 * row.time(length):.2f}",
        tokens,
        speed,
        rate,
    )
