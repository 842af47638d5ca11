"""The measurements, and the predictions that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from benchmarks.draft_design import measurements as m
from benchmarks.draft_design.measurements import Candidate, Decoded
from outpace.console import progress
from outpace.core.contracts import Target
from outpace.core.sampling_params import SamplingParams
from outpace.cost.step_time import (
    Choice,
    Needed,
    StepTime,
    best_length,
    expected_tokens,
    relative_error,
)
from outpace.plan.steps import ROUNDS


@dataclass(frozen=True)
class Row:
    """The prediction for one draft model and batch size."""

    candidate: Candidate
    rows: int
    time: StepTime
    speeds: dict[int, float]  # draft length -> tokens per second of a row; empty if acceptance is unknown
    best: Choice | None  # None if acceptance is unknown
    needed: Needed | None  # what it must reach; None if acceptance is known


@dataclass(frozen=True)
class Check:
    """A prediction for steps that it was not made from."""

    draft: str
    rows: int
    length: int
    predicted: float  # seconds of a step
    measured: float

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return relative_error(self.predicted, self.measured)


@dataclass(frozen=True)
class Design:
    """All results."""

    rows: list[Row]
    plain: dict[int, float]  # batch size -> tokens per second of a row without drafts
    checks: list[Check]
    acceptance: dict[str, Decoded]  # by draft model
    settings: dict[str, Any]

    def best(self, rows: int) -> Row | None:
        """The fastest draft model at a batch size; None if none is faster than plain decoding."""
        known = [(row.best.speed, row) for row in self.rows if row.rows == rows and row.best is not None]
        speed, row = max(known, key=lambda each: each[0], default=(0.0, None))
        return row if speed > self.plain[rows] and row is not None and row.best and row.best.length else None


def run_design(
    target: Target,
    candidates: Sequence[Candidate],
    texts: Sequence[Tensor],
    sampling: SamplingParams,
    *,
    lengths: Sequence[int],
    batches: Sequence[int],
    context: int,  # committed tokens of each row in timed forwards
    repeats: int,
) -> tuple[list[Row], dict[int, float], list[Check], dict[str, Decoded]]:
    """Measure all models; the fields of a `Design`, in its order, without settings."""
    held_out, longest = m.held_out_length(lengths), max(lengths)
    # Overhead is measured with the first model. The prediction is tested with steps of the last one too, the
    # last shape of the grid, whose overhead is not measured.
    reference, tested = candidates[0], candidates[-1]
    checked = {reference.name: reference, tested.name: tested}
    trained = [each for each in candidates if each.trained]
    total = len(batches) * (m.num_timed(len(candidates), lengths, repeats) + ROUNDS * (1 + len(checked)))
    rows: list[Row] = []
    plain: dict[int, float] = {}
    checks: list[Check] = []
    with progress(total + len(trained) * len(texts)) as advance:
        found = {
            each.name: m.acceptance_by_position(
                target, each.model, texts, longest, sampling, after=lambda: advance("acceptance", 1)
            )
            for each in trained
        }
        for size in batches:
            curve, seconds = m.forward_times(
                target,
                candidates,
                lengths,
                rows=size,
                context=context,
                repeats=repeats,
                after=lambda: advance("forwards", 1),
            )
            steps = m.step_times(
                target,
                {"": (None, [0])} | {name: (each.model, lengths) for name, each in checked.items()},
                texts,
                rows=size,
                sampling=sampling,
                after=lambda: advance("steps", 1),
            )
            first = m.with_overhead(StepTime(seconds[0], curve), lengths, steps[reference.name])
            times = [StepTime(each, curve, first.token_overhead, first.step_overhead) for each in seconds]
            plain[size] = 1 / steps[""][0]
            rows += predict(candidates, times, size, lengths, found, steps[""][0])
            if held_out is not None:
                by_name = dict(zip([each.name for each in candidates], times, strict=True))
                checks += [
                    Check(name, size, held_out, by_name[name](held_out), steps[name][held_out])
                    for name in checked
                ]
    return rows, plain, checks, found


def predict(
    candidates: Sequence[Candidate],
    times: Sequence[StepTime],  # of the candidates
    rows: int,
    lengths: Sequence[int],
    acceptance: dict[str, Decoded],
    plain_seconds: float,  # of a step without drafts
) -> list[Row]:
    """Speeds of the candidates whose acceptance is known; what the others must reach to be as fast as the
    best of these, or as plain decoding if that is faster."""
    known = {
        each.name: best_length(acceptance[each.name].acceptance, time, lengths)
        for each, time in zip(candidates, times, strict=True)
        if each.name in acceptance
    }
    reference = max([Choice(0, 1.0, plain_seconds), *known.values()], key=lambda choice: choice.speed)
    found: list[Row] = []
    for each, time in zip(candidates, times, strict=True):
        if each.name in known:
            rates = acceptance[each.name].acceptance
            speeds = {length: expected_tokens(rates, length) / time(length) for length in lengths}
            found.append(Row(each, rows, time, speeds, known[each.name], None))
        else:
            found.append(Row(each, rows, time, {}, None, Needed.least(reference, time, lengths)))
    return found
