"""Compare contenders with the first one: ratios of paired turns, with 95 % bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite
from typing import Any

from outpace.bench.load.load_level import LoadLevel
from outpace.bench.load.objectives import Objectives
from outpace.bench.load.summary import LoadRow, Percentiles, load_row
from outpace.bench.load.turn import Turn
from outpace.bench.measure.bootstrap import Interval, median_interval


def _median(percentiles: Percentiles | None) -> float | None:
    return percentiles.p50 if percentiles else None


MEASURES: Mapping[str, Callable[[LoadRow], float | None]] = {
    "time_to_first_token": lambda row: _median(row.time_to_first_token),
    "inter_token_latency": lambda row: _median(row.inter_token_latency),
    "time_per_output_token": lambda row: _median(row.time_per_output_token),
    "latency": lambda row: _median(row.latency),
    "output_tokens_per_second": lambda row: row.output_tokens_per_second,
    "goodput": lambda row: row.goodput,
}


@dataclass(frozen=True)
class RatioRow:
    """Ratios of one contender to the reference at one level: for each of MEASURES the median over rounds of
    the ratio of the two turns of a round, of latencies their medians. None: a round has no ratio."""

    contender: str
    reference: str
    level: LoadLevel
    rounds: int
    ratios: Mapping[str, Interval | None]

    def to_json(self) -> dict[str, Any]:
        ratios = {name: ratio.to_json() if ratio else None for name, ratio in self.ratios.items()}
        return {
            "contender": self.contender,
            "reference": self.reference,
            "load": self.level.label,
            "rounds": self.rounds,
            "ratios": ratios,
        }


def compare(
    turns: Sequence[Turn], contenders: Sequence[str], objectives: Objectives, *, seed: int
) -> list[RatioRow]:
    """A row for each level and contender after the first, which is the reference, over the rounds in which
    both turns are complete; `seed`: of the bootstrap."""
    rows = {
        (turn.level, turn.contender, turn.round): load_row([turn], objectives)
        for turn in turns
        if turn.complete
    }
    reference, *others = contenders
    found: list[RatioRow] = []
    for level, contender in product(dict.fromkeys(level for level, _, _ in rows), others):
        pairs = [
            (row, rows[level, reference, number])
            for (at, name, number), row in rows.items()
            if (at, name) == (level, contender) and (level, reference, number) in rows
        ]
        if pairs:
            ratios = {name: _interval(pairs, measure, seed) for name, measure in MEASURES.items()}
            found.append(RatioRow(contender, reference, level, len(pairs), ratios))
    return found


def _interval(
    pairs: Sequence[tuple[LoadRow, LoadRow]], measure: Callable[[LoadRow], float | None], seed: int
) -> Interval | None:
    ratios = [_ratio(measure(row), measure(other)) for row, other in pairs]
    return median_interval([[ratio] for ratio in ratios], seed=seed) if all(map(isfinite, ratios)) else None


def _ratio(value: float | None, reference: float | None) -> float:
    return float("nan") if value is None or not reference else value / reference
