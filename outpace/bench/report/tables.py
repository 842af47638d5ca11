"""The tables of a measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outpace.bench.measure.bootstrap import Interval
from outpace.bench.measure.contender import COMPILED, EAGER
from outpace.bench.measure.metrics import PARTS
from outpace.bench.report.summary import ALL, SELECTIONS, Row, headline
from outpace.tables import Table

SHOWN_POSITIONS = 5
NOTE = (
    "mean acceptance length counts the bonus token (plain decoding has 1.00); acceptance is accepted / drafted tokens; "
    "by position is unconditional, among steps that drafted; any accepted is how often a token of a sampled draft was "
    "kept, of how often an exact rule could keep one at most, both in a few steps before the timed ones; "
    "intervals are 95 % bootstrap over prompts and rounds; "
    "efficiency is the speedup over plain decoding in the same mode without prompt reading / what acceptance and the "
    "measured cost of forwards allow; "
    "repeats is the share of 4-grams that occurred before; differs counts greedy texts unlike plain decoding's "
    "(@ the median position of their first difference); precision is what a row really computed in."
)
BESIDE = (
    f" Methods marked ({EAGER}) ran on the same models as they are, the others compiled; speedups of both are over "
    "compiled plain decoding, and texts are compared within a mode, except those of plain decoding."
)


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None or value != value else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "-" if value is None or value != value else f"{100 * value:.0f} %"


def spread(interval: Interval) -> str:
    return f"{number(interval.median)} ({number(interval.low)}-{number(interval.high)})"


def _positions(row: Row) -> str:
    counts = row.counts
    if counts is None or not counts.draft_row_steps:
        return "-"
    shown = sorted(counts.accepted_at | counts.drafted_at)
    rates = [f"{100 * counts.accepted_at[position] / counts.draft_row_steps:.0f}" for position in shown]
    return " ".join(rates[:SHOWN_POSITIONS]) + (" ..." if len(rates) > SHOWN_POSITIONS else "")


def _best(row: Row) -> str:
    best = row.best
    if best is None:
        return "-"
    return f"{100 * best.kept / best.row_steps:.0f} of {100 * best.most / best.row_steps:.0f} %"


def _differs(row: Row) -> str:
    if row.different is None:
        return "-"
    return f"{row.different}/{row.compared}" + (f"@{row.first_difference:.0f}" if row.different else "")


def _time(part: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        return number(1000 * row.counts.seconds[part] / max(1, row.counts.steps)) if row.counts else "-"

    return cell


def _half(place: int, what: str, digits: int) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        return number(getattr(row.halves[place], what), digits) if row.halves else "-"

    return cell


Column = tuple[str, Callable[[Row], str]]
SPEED: tuple[Column, ...] = (
    ("method", lambda row: row.contender),
    ("tokens/s", lambda row: number(row.tokens_per_second.median, 1)),
    ("speedup (95 %)", lambda row: spread(row.speedup)),
    ("mean acceptance length", lambda row: number(row.counts.mean_acceptance_length) if row.counts else "-"),
    ("efficiency", lambda row: number(row.efficiency)),
    ("repeats", lambda row: percent(row.repetition)),
    ("differs", _differs),
)
PRECISION: Column = (
    "precision",
    lambda row: row.precision or "-",
)  # beside peers, whose precision is their own choice
INSIDE: tuple[Column, ...] = (
    ("method", lambda row: row.contender),
    (
        "acceptance",
        lambda row: (
            percent(row.counts.accepted / row.counts.drafted) if row.counts and row.counts.drafted else "-"
        ),
    ),
    ("by position, %", _positions),
    ("any accepted of at most", _best),
    *((part, _time(part)) for part in PARTS),
)


AS_IT_GOES: tuple[Column, ...] = (
    ("method", lambda row: row.contender),
    *(
        (f"{name}, {which} half", _half(place, what, digits))
        for name, what, digits in (
            ("mean acceptance length", "mean_acceptance_length", 2),
            ("tokens/s", "tokens_per_second", 1),
            ("speedup", "speedup", 2),
        )
        for place, which in enumerate(("first", "second"))
    ),
)


def notes(rows: Sequence[Row]) -> str:
    """What the columns mean."""
    return NOTE + (BESIDE if {COMPILED, EAGER} <= {row.mode for row in rows} else "")


def tables(rows: Sequence[Row]) -> list[Table]:
    """Tables for each workload and temperature: how fast, why, and whether it gets better as prompts come again."""
    found: list[Table] = []
    for temperature in dict.fromkeys(row.temperature for row in rows):
        for workload in dict.fromkeys(row.workload for row in rows):
            shown = headline(rows, workload, temperature)
            if not shown:
                continue
            first = max(shown, key=lambda row: row.prompts)
            about = heading(workload, temperature)
            everything = next((r for r in rows if _same(r, first) and r.selection == ALL), first)
            title = f"{about}: {first.prompts} of {everything.prompts} prompts, {SELECTIONS[first.selection]}"
            peers = any(row.kind == "peer" for row in shown)
            found.append(_table(title, (*SPEED, PRECISION) if peers else SPEED, shown))
            inside = [row for row in shown if row.counts]
            if inside:
                found.append(
                    _table(f"{about}: inside a step, the last {len(PARTS)} in milliseconds", INSIDE, inside)
                )
            if first.passes > 1:
                title = f"{about}: as it goes, every prompt {first.passes} times, one pass over them after another"
                found.append(_table(title, AS_IT_GOES, shown))
    return found


def heading(workload: str, temperature: float | None) -> str:
    """What a group of rows is about."""
    return f"{workload}, " + ("all temperatures" if temperature is None else f"temperature {temperature:g}")


def _same(row: Row, other: Row) -> bool:
    return (row.contender, row.workload, row.temperature) == (
        other.contender,
        other.workload,
        other.temperature,
    )


def _table(title: str, columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    names = tuple(name for name, _ in columns)
    return Table(title, names, tuple(tuple(cell(row) for _, cell in columns) for row in rows))
