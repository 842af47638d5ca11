"""Summarise the turns of a load test: one row for each contender and level of load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import product
from typing import Any

import numpy as np

from outpace.bench.load.load_level import LoadLevel
from outpace.bench.load.objectives import Objectives
from outpace.bench.load.speculation import SpeculationCounters
from outpace.bench.load.turn import Turn


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of a latency in milliseconds."""

    p50: float
    p95: float
    p99: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)


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
    time_to_first_token: Percentiles | None
    inter_token_latency: Percentiles | None  # between chunks, which may hold several tokens
    time_per_output_token: Percentiles | None  # of requests
    latency: Percentiles | None  # until the end of the stream
    delay: Percentiles | None  # between planned arrival and sending
    requests_per_second: float
    output_tokens_per_second: float | None  # None: the server did not report numbers of tokens
    goodput: float | None  # requests per second that met the objectives; None: there are none
    tokens_per_request: float | None
    tokens_per_chunk: float | None
    speculation: SpeculationCounters | None

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "contender": self.contender,
            "load": self.level.label,
            "load_value": self.level.value,
            "load_unit": self.level.axis,
            "rounds": self.rounds,
            "requests": self.requests,
            "failed": self.failed,
            "failures": dict(self.failures),
            **{f"{name}_ms": found.to_json() if found else None for name, found in self.latencies().items()},
            "requests_per_second": self.requests_per_second,
            "output_tokens_per_second": self.output_tokens_per_second,
            "goodput": self.goodput,
            "tokens_per_request": self.tokens_per_request,
            "tokens_per_chunk": self.tokens_per_chunk,
            "speculation": self.speculation.to_json() if self.speculation else None,
        }

    def latencies(self) -> dict[str, Percentiles | None]:
        """All percentiles by name."""
        return {
            "time_to_first_token": self.time_to_first_token,
            "inter_token_latency": self.inter_token_latency,
            "time_per_output_token": self.time_per_output_token,
            "latency": self.latency,
            "delay": self.delay,
        }


def summarise(turns: Sequence[Turn], contenders: Sequence[str], objectives: Objectives) -> list[LoadRow]:
    """A row for each level and contender with a turn: levels as they were measured, contenders in the order
    given."""
    groups: dict[tuple[LoadLevel, str], list[Turn]] = {}
    for turn in turns:
        groups.setdefault((turn.level, turn.contender), []).append(turn)
    levels = dict.fromkeys(level for level, _ in groups)
    return [load_row(groups[key], objectives) for key in product(levels, contenders) if key in groups]


def load_row(turns: Sequence[Turn], objectives: Objectives) -> LoadRow:
    """The row of these turns, all of one contender at one level."""
    records = [record for turn in turns for record in turn.records]
    succeeded = [record for record in records if not record.failed]
    seconds = sum(turn.seconds for turn in turns)
    tokens = [record.output_tokens for record in succeeded if record.output_tokens is not None]
    known = bool(succeeded) and len(tokens) == len(succeeded)
    good = objectives.count(records)
    counted = [turn.speculation for turn in turns if turn.speculation]
    per_token = [each for record in succeeded if (each := record.time_per_output_token) is not None]
    return LoadRow(
        contender=turns[0].contender,
        level=turns[0].level,
        rounds=len(turns),
        requests=len(records),
        failures=Counter(record.error for record in records if record.failed),
        time_to_first_token=percentiles(record.time_to_first_token for record in succeeded),
        inter_token_latency=percentiles(gap for record in succeeded for gap in record.inter_token_latencies),
        time_per_output_token=percentiles(per_token),
        latency=percentiles(record.latency for record in succeeded),
        delay=percentiles(record.delay for record in records),
        requests_per_second=len(succeeded) / seconds if seconds else 0.0,
        output_tokens_per_second=sum(tokens) / seconds if known and seconds else None,
        goodput=good / seconds if good is not None and seconds else None,
        tokens_per_request=sum(tokens) / len(tokens) if known else None,
        tokens_per_chunk=sum(tokens) / sum(len(record.chunks) for record in succeeded) if known else None,
        speculation=reduce(SpeculationCounters.__add__, counted) if counted else None,
    )
