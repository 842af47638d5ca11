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
        for round_index, level_index in product(range(self.rounds), range(len(self.levels))):
            first = (round_index + level_index) % len(order)
            for contender in [*order[first:], *order[:first]]:
                yield round_index, level_index, contender

    def requests(self, round_index: int, level_index: int) -> Iterator[PlannedRequest]:
        """The requests of a turn in order of arrival; endless for concurrent streams that run for a time.

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
        level, length = self.levels[level_index], self.length
        if isinstance(level, RequestRate):
            return poisson_arrivals(
                level.value,
                (self.seed, round_index, level_index),
                num_requests=length.num_requests,
                seconds=length.seconds,
            )
        return repeat(None) if length.num_requests is None else repeat(None, length.num_requests)
