"""One turn: a contender gets one level of load, and what it answered is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from outpace.bench.load.load_level import LoadLevel
from outpace.bench.load.plan import PlannedRequest
from outpace.bench.load.record import RequestRecord
from outpace.bench.load.speculation import SpeculationCounters

Send = Callable[[PlannedRequest], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Turn:
    """The records of one turn; `seconds`: from its beginning to the end of its last response."""

    contender: str
    level: LoadLevel
    round: int
    records: tuple[RequestRecord, ...]
    seconds: float
    complete: bool = True  # False: interrupted, and requests without an answer are missing
    speculation: SpeculationCounters | None = None  # counted during the turn; None: not counted

    def to_json(self) -> dict[str, Any]:
        return {
            "contender": self.contender,
            "load": self.level.label,
            "round": self.round,
            "seconds": self.seconds,
            "complete": self.complete,
            "speculation": self.speculation.to_json() if self.speculation else None,
            "requests": [record.to_json() for record in self.records],
        }


async def open_loop(requests: Iterator[PlannedRequest], send: Send, began: float) -> None:
    """Send each request at its arrival time, whether or not others have been answered, and wait for all
    answers; `began`: when the turn began, by `time.perf_counter`. `send` must not raise exceptions."""
    async with asyncio.TaskGroup() as group:
        for request in requests:
            await asyncio.sleep(max(0.0, began + (request.arrival or 0.0) - perf_counter()))
            group.create_task(send(request))


async def closed_loop(
    requests: Iterator[PlannedRequest], send: Send, *, streams: int, until: float | None
) -> None:
    """Send requests on this number of streams, one at a time on each, until there are no more or, if `until`
    is given, `time.perf_counter` has reached it. `send` must not raise exceptions."""

    async def stream() -> None:
        for request in requests:  # all streams take from the same iterator
            await send(request)
            if until is not None and perf_counter() >= until:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
