"""Recommend a method from the result rows of a benchmark: the fastest lossless method, plain decoding, or
nothing where too little was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from outpace.bench.measure.bootstrap import MIN_GROUPS, Interval
from outpace.bench.measure.method_names import PLAIN
from outpace.bench.report.summary import ALL, VARIED, ResultRow


@dataclass(frozen=True)
class Recommendation:
    """A method with its options and expected speedup: the contents of a file for `--method @FILE`."""

    method: str | None  # None: too little was measured to recommend any
    options: Mapping[str, Any]
    draft: str | None
    gain: Interval  # over plain decoding; NaN without a method
    reason: str  # one sentence

    def to_json(self, workload: Mapping[str, Any], provenance: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "method": self.method,
            "options": dict(self.options),
            "draft": self.draft,
            "expected_speedup": self.gain.median,
            "interval": [self.gain.low, self.gain.high],
            "reason": self.reason,
            "workload": dict(workload),
            "provenance": dict(provenance),
        }


@dataclass(frozen=True)
class MethodChoice:
    """Method, options and draft model that a recommendation of a contender contains."""

    method: str
    options: Mapping[str, Any]
    draft: str | None
    could_adapt: bool = False  # it has the option `adaptive` for the sizes of its trees, which is off


def recommend(rows: Sequence[ResultRow], choices: Mapping[str, MethodChoice]) -> Recommendation:
    """The lossless method with the largest median speedup among those whose 95 % interval is above 1, else
    plain decoding.

    With fewer than three prompts there is no interval, and without a lossless method nothing to compare: then
    nothing is recommended.
    """
    offered = [row for row in rows if row.contender in choices and choices[row.contender].method != PLAIN]
    lossless = [row for row in offered if row.lossless]
    certain = [row for row in lossless if not row.too_few_prompts and row.speedup.low > 1.0]
    if certain:
        best = max(certain, key=lambda row: row.speedup.median)
        choice, gain = choices[best.contender], best.speedup
        repetitive = ", repetitive texts included" if best.selection == ALL else ""
        again = f", each decoded {best.repeat} times" if best.repeat > 1 else ""
        reason = (
            f"use {best.contender}: {gain.median:.2f} times the speed of plain decoding on these "
            f"prompts{again} "
            f"(95 % interval {gain.low:.2f} to {gain.high:.2f}; {best.prompts} prompts{repetitive})."
        )
        return Recommendation(choice.method, choice.options, choice.draft, gain, reason)
    if lossless and all(row.too_few_prompts for row in lossless):
        return nothing(too_few(lossless[0]))
    if lossless:
        nearest = max(
            (row for row in lossless if not row.too_few_prompts), key=lambda row: row.speedup.median
        )
        gain = nearest.speedup
        why = (
            f"the speedup of the fastest method, {nearest.contender}, is {gain.median:.2f} "
            f"(95 % interval {gain.low:.2f} to {gain.high:.2f})"
        )
        if choices[nearest.contender].could_adapt:
            why += "; its trees may be too large for this machine: measure it with adaptive=true"
        return Recommendation(PLAIN, {}, None, Interval(1.0, 1.0, 1.0), f"do not speculate: {why}.")
    if offered:
        return nothing("none of the measured methods is lossless")
    return nothing("no method that can be recommended was measured completely")


def nothing(why: str) -> Recommendation:
    """No recommendation, for a reason that is part of a sentence."""
    return Recommendation(None, {}, None, Interval(nan, nan, nan), f"no recommendation: {why}.")


def too_few(row: ResultRow) -> str:
    """The reason why a row has no interval, and what gives one, as part of a sentence."""
    text = (
        f"only {row.prompts} of the needed {MIN_GROUPS} prompts"
        if row.prompts < MIN_GROUPS
        else "too few batches"
    )
    if row.selection == VARIED:
        return (
            f"{text} have plain output that does not repeat itself; measure more prompts, or include the "
            "others with --selection all"
        )
    return f"{text} were measured; give more with --prompts and --num-prompts"
