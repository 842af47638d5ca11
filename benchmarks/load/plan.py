"""The plan of a load test: which requests are sent when, the same for every contender."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, product, repeat, takewhile
from math import isfinite
from typing import Any, TypeVar

import numpy as np

from outpace.bench.measure.workload import WorkloadItem

T = TypeVar("T")


@dataclass(frozen=True)
class Contender:
    """A server together with fields that are added to each of its requests."""

    name: str
    url: str  # of the server, such as http://127.0.0.1:8000/v1
    extra_body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadLevel:
    """How much load a server gets: requests per second, sent whether or not earlier ones have been answered
    (open loop), or concurrent streams, each of which sends its next request when the last one has ended."""

    value: float
    streams: bool

    @property
    def label(self) -> str:
        unit = " stream" if self.streams else " request"
        return f"{self.value:g}{unit}{'' if self.value == 1 else 's'}{'' if self.streams else '/s'}"


def parse_levels(rates: str | None, concurrency: str | None) -> list[LoadLevel]:
    """The levels of `--rates` and `--concurrency`, numbers separated by commas, in ascending order: rates
    first. ValueError if a number is malformed or not positive."""
    levels: list[LoadLevel] = []
    for text, number, streams in ((rates, float, False), (concurrency, int, True)):
        values = {number(each) for each in text.split(",")} if text else set()
        levels += [LoadLevel(float(value), streams) for value in sorted(values)]
    if wrong := [level.label for level in levels if not (isfinite(level.value) and level.value > 0)]:
        raise ValueError(f"a load of {wrong[0]} cannot be measured: give positive numbers")
    return levels


def poisson_arrivals(rate: float, seed: Sequence[int], seconds: float) -> list[float]:
    """Arrival times before `seconds`, ascending: gaps are exponential with mean 1 / `rate`."""
    random = np.random.default_rng(seed)
    times = accumulate(float(random.exponential(1 / rate)) for _ in count())
    return list(takewhile(lambda time: time < seconds, times))


@dataclass(frozen=True)
class PlannedRequest:
    """A request to be sent `arrival` seconds after its turn began; None: as soon as a stream is free."""

    item: WorkloadItem
    seed: int
    arrival: float | None


@dataclass(frozen=True)
class LoadPlan:
    """Prompts, levels and rounds of a load test. In a turn one contender gets one level of load."""

    items: Sequence[WorkloadItem]
    levels: Sequence[LoadLevel]
    rounds: int
    seconds: float  # of a turn, in which requests are sent
    seed: int = 0

    def turns(self, contenders: Sequence[T]) -> Iterator[tuple[int, int, T]]:
        """(Round, index of the level, contender) of each turn in order: in each round every level, at each
        level every contender, and another one first in the next round."""
        order = [contenders[index] for index in np.random.default_rng(self.seed).permutation(len(contenders))]
        for round_index, level_index in product(range(self.rounds), range(len(self.levels))):
            first = (round_index + level_index) % len(order)
            for contender in [*order[first:], *order[:first]]:
                yield round_index, level_index, contender

    def requests(self, round_index: int, level_index: int) -> Iterator[PlannedRequest]:
        """The requests of a turn in order of arrival; endless for concurrent streams.

        Each turn begins at another prompt of one shuffled list, so that no prompt comes again before all
        others have been sent, as far as they suffice.
        """
        order = np.random.default_rng(self.seed).permutation(len(self.items))
        turn, num_turns = round_index * len(self.levels) + level_index, self.rounds * len(self.levels)
        arrivals = enumerate(self._arrivals(round_index, level_index), turn * len(order) // num_turns)
        return (
            PlannedRequest(self.items[order[index % len(order)]], self.seed + index, arrival)
            for index, arrival in arrivals
        )

    def _arrivals(self, round_index: int, level_index: int) -> Iterable[float | None]:
        level = self.levels[level_index]
        if level.streams:
            return repeat(None)
        return poisson_arrivals(level.value, (self.seed, round_index, level_index), self.seconds)
