"""The result tables of a benchmark: speed, quality, efficiency and differing texts, acceptance and time per
step, learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outpace.bench.measure.bootstrap import Interval
from outpace.bench.measure.contender import COMPILED, EAGER
from outpace.bench.measure.means import Mean
from outpace.bench.measure.metrics import PARTS
from outpace.bench.measure.quality import Quality
from outpace.bench.report.summary import ALL, SELECTIONS, VARIED, ResultRow, headline
from outpace.tables import Table

SHOWN_POSITIONS = 5
TOO_FEW = "too few prompts"
NOTE = (
    "Each run is paired with plain decoding of the same prompt, round and seed. Tokens/s and plain tokens/s "
    "are medians "
    "over these pairs; speedup is the median of the pairs' ratios, which need not be the ratio of the two "
    "medians. "
    "Intervals are 95 % bootstrap over prompts, and need at least three. "
    "Mean acceptance length counts the bonus token (plain decoding: 1.00). "
    "Decode speedup leaves out the steps that read the prompt and is over plain decoding in the same mode; "
    "ideal is what the acceptance and the measured seconds of forwards allow; efficiency is their ratio by "
    "prompt, for methods that drafted. "
    "Repetition is the share of 4-grams that occurred before in the same text. "
    "Differing texts: greedy outputs unlike plain decoding's (@ median position of the first difference). "
    "Acceptance is accepted / drafted tokens; by position: among steps that drafted, unconditional. "
    "First token accepted: how often one of a sampled draft's first tokens was accepted, and the upper "
    "bound for any "
    "lossless rule, both from steps that were not timed. "
    "Precision is what the engine computed in."
)
TWO_MODES = (
    f" Methods marked ({EAGER}) ran with eager forwards, the others with compiled ones. Speedups of both "
    "are over "
    "compiled plain decoding; texts are compared within a mode, except those of plain decoding."
)
QUALITY_NOTE = (
    " Quality is that of the texts whose speed was measured. Exact match: texts with the known answer of "
    "their prompt. Loss: -log p of the texts' tokens, where p is the target at temperature 1 without other "
    "parameters, from one plain forward over prompt and text. Unlike the target: at temperature 0, the share "
    "of tokens that are not the target's most probable ones after the method's own text before them; plain "
    "decoding has some by rounding alone. Excess loss: above temperature 0, the loss less that of plain "
    "decoding's texts for the same prompts and seeds; above 0 the texts are less probable than the target's, "
    "below 0 more probable. What is = target promises its distribution and was not measured."
)
NOT_THE_TARGETS = " LOSSY, so that their texts are not the target's: {names}."


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None or value != value else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "-" if value is None or value != value else f"{100 * value:.0f} %"


def with_interval(interval: Interval | None, too_few: str = TOO_FEW) -> str:
    """Text such as `1.97 (1.77-2.46)`; `too_few` without enough prompts (or rounds) for an interval."""
    if interval is None:
        return "-"
    if not interval.known:
        return too_few
    return f"{number(interval.median)} ({number(interval.low)}-{number(interval.high)})"


def mean_with_interval(mean: Mean | None, digits: int = 3, factor: float = 1.0) -> str:
    """Text such as `0.012 (-0.004 to 0.031)`, times `factor`; without an interval if there were too few
    prompts."""
    if mean is None or mean.mean != mean.mean:
        return "-"
    value, low, high = (number(factor * each, digits) for each in (mean.mean, mean.low, mean.high))
    return f"{value} ({low} to {high})" if mean.known else value


def _positions(row: ResultRow) -> str:
    counts = row.counts
    if counts is None or not counts.draft_row_steps:
        return "-"
    shown = sorted(counts.accepted_at | counts.drafted_at)
    rates = [f"{100 * counts.accepted_at[position] / counts.draft_row_steps:.0f}" for position in shown]
    return " ".join(rates[:SHOWN_POSITIONS]) + (" ..." if len(rates) > SHOWN_POSITIONS else "")


def _first_token(row: ResultRow) -> str:
    first = row.first_token
    if first is None:
        return "-"
    return f"{100 * first.accepted / first.row_steps:.0f} of {100 * first.bound / first.row_steps:.0f} %"


def _differs(row: ResultRow) -> str:
    if row.different is None:
        return "-"
    return f"{row.different}/{row.compared}" + (f"@{row.first_difference:.0f}" if row.different else "")


def _milliseconds(part: str) -> Callable[[ResultRow], str]:
    def cell(row: ResultRow) -> str:
        return number(row.counts.per_step(row.counts.seconds[part])) if row.counts else "-"

    return cell


def _half(half: int, what: str, digits: int) -> Callable[[ResultRow], str]:
    def cell(row: ResultRow) -> str:
        return number(getattr(row.halves[half], what), digits) if row.halves else "-"

    return cell


Column = tuple[str, Callable[[ResultRow], str]]
SPEED: tuple[Column, ...] = (
    ("method", lambda row: row.contender),
    ("tokens/s", lambda row: number(row.tokens_per_second.median, 1)),
    ("plain tokens/s", lambda row: number(row.plain_tokens_per_second.median, 1)),
    ("speedup, paired (95 %)", lambda row: with_interval(row.speedup)),
    ("mean acceptance length", lambda row: number(row.counts.mean_acceptance_length) if row.counts else "-"),
    ("repetition", lambda row: percent(row.repetition)),
)
CHECKS: tuple[Column, ...] = (
    ("method", lambda row: row.contender),
    ("decode speedup", lambda row: number(row.decode_speedup)),
    ("ideal", lambda row: number(row.ideal_speedup)),
    ("efficiency (95 %)", lambda row: with_interval(row.efficiency)),
    ("differing texts", _differs),
)
PRECISION: Column = ("precision", lambda row: row.precision or "-")  # shown only in tables with peers
INSIDE: tuple[Column, ...] = (
    ("method", lambda row: row.contender),
    (
        "acceptance",
        lambda row: (
            percent(row.counts.accepted / row.counts.drafted) if row.counts and row.counts.drafted else "-"
        ),
    ),
    ("by position, %", _positions),
    ("first token accepted, bound", _first_token),
    *((part, _milliseconds(part)) for part in PARTS),
)


LEARNING: tuple[Column, ...] = (
    ("method", lambda row: row.contender),
    *(
        (f"{name}, {which} half", _half(half, what, digits))
        for name, what, digits in (
            ("mean acceptance length", "mean_acceptance_length", 2),
            ("tokens/s", "tokens_per_second", 1),
            ("speedup", "speedup", 2),
        )
        for half, which in enumerate(("first", "second"))
    ),
)

EXACT = "= target"


def _quality(shown: Callable[[Quality], str]) -> Callable[[ResultRow], str]:
    def cell(row: ResultRow) -> str:
        if row.quality is not None:
            return shown(row.quality)
        return EXACT if row.lossless and row.kind == "outpace" else "-"

    return cell


def quality_columns(rows: Sequence[ResultRow]) -> tuple[Column, ...]:
    """The columns of a table of quality: those that rows have a value for."""
    answers = any(row.quality and row.quality.answered for row in rows)
    greedy = any(row.quality and row.quality.unlike for row in rows)
    sampled = any(row.quality and row.quality.excess for row in rows)
    return (
        ("method", lambda row: row.contender),
        ("speedup, paired (95 %)", lambda row: with_interval(row.speedup)),
        *((("exact match", _quality(lambda each: f"{each.right}/{each.answered}")),) if answers else ()),
        ("loss, nats per token", _quality(lambda each: number(each.loss.mean, 3))),
        *(
            (("unlike the target, % (95 %)", _quality(lambda each: mean_with_interval(each.unlike, 2, 100))),)
            if greedy
            else ()
        ),
        *(
            (("excess loss (95 %)", _quality(lambda each: mean_with_interval(each.excess))),)
            if sampled
            else ()
        ),
    )


def quality_table(title: str, rows: Sequence[ResultRow]) -> Table | None:
    """Speed beside quality; None if quality was not measured."""
    if not any(row.quality for row in rows):
        return None
    return _table(title, quality_columns(rows), rows)


def notes(rows: Sequence[ResultRow]) -> str:
    """Explanation of the columns, printed below the tables."""
    lossy = sorted({row.contender for row in rows if row.kind == "outpace" and not row.lossless})
    return (
        NOTE
        + (TWO_MODES if {COMPILED, EAGER} <= {row.mode for row in rows} else "")
        + (QUALITY_NOTE if any(row.quality for row in rows) else "")
        + (NOT_THE_TARGETS.format(names=", ".join(lossy)) if lossy else "")
    )


def tables(rows: Sequence[ResultRow], selection: str = VARIED) -> list[Table]:
    """The tables of each workload and temperature: speed, quality where it was measured, efficiency, inside a
    step, and for repeated prompts the first against the second half."""
    found: list[Table] = []
    for temperature in dict.fromkeys(row.temperature for row in rows):
        for workload in dict.fromkeys(row.workload for row in rows):
            shown = headline(rows, workload, temperature, selection)
            if not shown:
                continue
            first = max(shown, key=lambda row: row.prompts)
            about = heading(workload, temperature)
            everything = next((r for r in rows if _same(r, first) and r.selection == ALL), first)
            title = f"{about}: {first.prompts} of {everything.prompts} prompts, {SELECTIONS[first.selection]}"
            peers = any(row.kind == "peer" for row in shown)
            found.append(_table(title, SPEED, shown))
            if quality := quality_table(f"{about}: quality", shown):
                found.append(quality)
            columns = (*CHECKS, PRECISION) if peers else CHECKS
            found.append(_table(f"{about}: efficiency, and texts unlike plain decoding's", columns, shown))
            inside = [row for row in shown if row.counts]
            if inside:
                found.append(
                    _table(f"{about}: inside a step ({', '.join(PARTS)} in milliseconds)", INSIDE, inside)
                )
            if first.repeat > 1:
                title = (
                    f"{about}: first and second half of the prompts, all of which came {first.repeat} times"
                )
                found.append(_table(title, LEARNING, shown))
    return found


def heading(workload: str, temperature: float | None) -> str:
    """Title of a workload and temperature; None: all temperatures pooled."""
    return f"{workload}, " + ("all temperatures" if temperature is None else f"temperature {temperature:g}")


def _same(row: ResultRow, other: ResultRow) -> bool:
    return (row.contender, row.workload, row.temperature) == (
        other.contender,
        other.workload,
        other.temperature,
    )


def _table(title: str, columns: Sequence[Column], rows: Sequence[ResultRow]) -> Table:
    names = tuple(name for name, _ in columns)
    return Table(title, names, tuple(tuple(cell(row) for _, cell in columns) for row in rows))
