"""One answer from a measurement: which method to use here, what it gains, or not to speculate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outpace.bench.measure.bootstrap import Interval
from outpace.bench.measure.method_names import PLAIN
from outpace.bench.report.summary import ALL, FEWEST_PROMPTS, Row


@dataclass(frozen=True)
class Recommendation:
    """What a file for `--method @file` says."""

    method: str
    options: Mapping[str, Any]
    draft: str | None
    gain: Interval
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
class Choice:
    """What a row's contender is called in a file."""

    method: str
    options: Mapping[str, Any]
    draft: str | None


def recommend(rows: Sequence[Row], choices: Mapping[str, Choice]) -> Recommendation:
    """The fastest lossless method whose gain is certain: the lower end of its interval is above 1."""
    offered = [row for row in rows if row.contender in choices and choices[row.contender].method != PLAIN]
    lossless = [row for row in offered if row.lossless]
    certain = [row for row in lossless if row.speedup.low > 1.0 and row.prompts >= FEWEST_PROMPTS]
    if certain:
        best = max(certain, key=lambda row: row.speedup.median)
        choice, gain = choices[best.contender], best.speedup
        loops = ", texts that repeat themselves included" if best.selection == ALL else ""
        again = f" asked {best.passes} times" if best.passes > 1 else ""
        reason = (
            f"use {best.contender}: {gain.median:.2f} times the speed of plain decoding on these prompts{again} "
            f"(95 % interval {gain.low:.2f} to {gain.high:.2f}; {best.prompts} prompts{loops})."
        )
        return Recommendation(choice.method, choice.options, choice.draft, gain, reason)
    if lossless and max(row.prompts for row in lossless) < FEWEST_PROMPTS:
        why = f"fewer than {FEWEST_PROMPTS} prompts make no gain certain"
    elif lossless:
        nearest = max(lossless, key=lambda row: row.speedup.median)
        gain = nearest.speedup
        why = f"the best of them, {nearest.contender}, gained {gain.median:.2f} ({gain.low:.2f} to {gain.high:.2f})"
    elif offered:
        why = "none of the measured methods keeps the target's distribution"
    else:
        why = "no method was measured to the end"
    return Recommendation(PLAIN, {}, None, Interval(1.0, 1.0, 1.0), f"do not speculate: {why}.")
