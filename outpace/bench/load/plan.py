"""The plan of a load test: which requests are sent when, the same for every contender."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product, repeat
from typing import TypeVar

import numpy as np

from outpace.bench.load.arrivals import poisson_arrivals
from outpace.bench.load.load_level import LoadLevel, RequestRate
from outpace.bench.measure.workload import WorkloadItem

T = TypeVar("T")


@dataclass(frozen=True)
class TurnLength:
    """The length of a turn: a number of requests, or seconds in which requests are sent; one of them is
    None."""

    num_requests: int | None = None
    seconds: int | None = None

    @property
    def units(self) -> int:
        """Units of a progress bar for one turn: requests or seconds."""
        return self.num_requests or self.seconds or 0


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
    length: TurnLength
    seed: int

    def turns(self, contenders: Sequence[T]) -> Iterator[tuple[int, int, T]]:
        """(Round, index of the level, contender) of each turn in order: in each round every level, at each
        level every contender, and another one first in the next round."""
        order = [contenders[index] for index in np.random.default_rng(self.seed).permutation(len(contenders))]
        for number, level in product(range(self.rounds), range(len(self.levels))):
            first = (number + level) % len(order)
            for contender in [*order[first:], *order[:first]]:
                yield number, level, contender

    def requests(self, number: int, level: int) -> Iterator[PlannedRequest]:
        """The requests of a turn in round `number` at the level with this index, in order of arrival; without
        an end for concurrent streams that run for a time.

        Each turn begins at another prompt of one shuffled list, so that no prompt comes again before all
        others have been sent, as far as they suffice.
        """
        order = np.random.default_rng(self.seed).permutation(len(self.items))
        first = (number * len(self.levels) + level) * len(order) // (self.rounds * len(self.levels))
        for index, arrival in enumerate(self._arrivals(number, level), first):
            yield PlannedRequest(self.items[order[index % len(order)]], self.seed + index, arrival)

    def _arrivals(self, number: int, level: int) -> Iterable[float | None]:
        load, length = self.levels[level], self.length
        if isinstance(load, RequestRate):
            return poisson_arrivals(
                load.value,
                (self.seed, number, level),
                num_requests=length.num_requests,
                seconds=length.seconds,
            )
        return repeat(None) if length.num_requests is None else repeat(None, length.num_requests)
