"""Rows of a load test, one for each contender and level of load, and ratios of paired turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import product
from math import isfinite
from typing import Any

import numpy as np

from benchmarks.load.plan import LoadLevel
from benchmarks.load.request import RequestRecord
from benchmarks.load.speculation import SpeculationCounters
from benchmarks.load.turn import Turn
from outpace.bench.measure.bootstrap import Interval, median_interval


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of a latency in milliseconds."""

    p50: float
    p95: float
    p99: float


def percentiles(seconds: Iterable[float]) -> Percentiles | None:
    """Percentiles in milliseconds of values in seconds, interpolated linearly between the two nearest values;
    None without values."""
    values = 1000 * np.array(list(seconds), float)
    return Percentiles(*map(float, np.percentile(values, (50, 95, 99)))) if len(values) else None


@dataclass(frozen=True)
class LoadRow:
    """Results of one contender at one level of load, over all rounds.

    Latencies are those of the requests that succeeded. Rates are per second of the turns, which end with
    their last answer.
    """

    contender: str
    level: LoadLevel
    rounds: int
    requests: int
    failures: Mapping[str, int]  # reason -> number of requests
    time_to_first_token_ms: Percentiles | None
    time_per_output_token_ms: Percentiles | None  # of requests
    latency_ms: Percentiles | None  # until the end of the stream
    delay_ms: Percentiles | None  # between planned arrival and sending
    requests_per_second: float
    output_tokens_per_second: float
    speculation: SpeculationCounters | None

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    def to_json(self) -> dict[str, Any]:
        speculation = self.speculation.to_json() if self.speculation else None
        return {**_fields(self), "failed": self.failed, "speculation": speculation}


def summarise(turns: Sequence[Turn], contenders: Sequence[str]) -> list[LoadRow]:
    """A row for each level and contender with a turn: levels as they were measured, contenders in the order
    given."""
    groups: dict[tuple[LoadLevel, str], list[Turn]] = {}
    for turn in turns:
        groups.setdefault((turn.level, turn.contender), []).append(turn)
    levels = dict.fromkeys(level for level, _ in groups)
    return [load_row(groups[key]) for key in product(levels, contenders) if key in groups]


def load_row(turns: Sequence[Turn]) -> LoadRow:
    """The row of these turns, all of one contender at one level."""
    records: list[RequestRecord] = [record for turn in turns for record in turn.records]
    succeeded = [record for record in records if not record.error]
    seconds = sum(turn.seconds for turn in turns)
    counted = [turn.speculation for turn in turns if turn.speculation]
    per_token = [each for record in succeeded if (each := record.time_per_output_token) is not None]
    return LoadRow(
        contender=turns[0].contender,
        level=turns[0].level,
        rounds=len(turns),
        requests=len(records),
        failures=dict(Counter(record.error for record in records if record.error)),
        time_to_first_token_ms=percentiles(record.chunks[0] for record in succeeded),
        time_per_output_token_ms=percentiles(per_token),
        latency_ms=percentiles(record.latency for record in succeeded),
        delay_ms=percentiles(record.delay for record in records),
        requests_per_second=len(succeeded) / seconds if seconds else 0.0,
        output_tokens_per_second=sum(each.output_tokens for each in succeeded) / seconds if seconds else 0.0,
        speculation=reduce(SpeculationCounters.__add__, counted) if counted else None,
    )


def _median(found: Percentiles | None) -> float | None:
    return found.p50 if found else None


MEASURES: Mapping[str, Callable[[LoadRow], float | None]] = {
    "time_to_first_token": lambda row: _median(row.time_to_first_token_ms),
    "time_per_output_token": lambda row: _median(row.time_per_output_token_ms),
    "latency": lambda row: _median(row.latency_ms),
    "output_tokens_per_second": lambda row: row.output_tokens_per_second,
}


@dataclass(frozen=True)
class RatioRow:
    """Ratios of one contender to the reference at one level: for each of MEASURES the median over rounds of
    the ratio of the two turns of a round, with its 95 % bootstrap interval over rounds; of latencies their
    medians. None: a round has no ratio."""

    contender: str
    reference: str
    level: LoadLevel
    rounds: int
    ratios: Mapping[str, Interval | None]

    def to_json(self) -> dict[str, Any]:
        return _fields(self)


def _fields(row: LoadRow | RatioRow) -> dict[str, Any]:
    fields = asdict(row)
    del fields["level"]
    return {"load": row.level.label, **fields}


def compare(turns: Sequence[Turn], contenders: Sequence[str], *, seed: int) -> list[RatioRow]:
    """A row for each level and contender after the first, which is the reference, over the rounds in which
    both have a turn; `seed`: of the bootstrap."""
    rows = {(turn.level, turn.contender, turn.round): load_row([turn]) for turn in turns}
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
