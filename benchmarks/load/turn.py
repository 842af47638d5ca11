"""One turn: a contender gets one level of load, and what it answered is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from benchmarks.load.plan import LoadLevel, PlannedRequest
from benchmarks.load.request import RequestRecord
from benchmarks.load.speculation import SpeculationCounters

Send = Callable[[PlannedRequest], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Turn:
    """The records of one turn; `seconds`: from its beginning to the end of its last response."""

    contender: str
    level: LoadLevel
    round: int
    records: tuple[RequestRecord, ...]
    seconds: float
    speculation: SpeculationCounters | None = None  # counted during the turn; None: not counted


async def open_loop(requests: Iterator[PlannedRequest], send: Send, began: float) -> None:
    """Send each request at its arrival time, whether or not others have been answered, and wait for all
    answers; `began`: when the turn began, by `time.perf_counter`. `send` must not raise exceptions."""
    async with asyncio.TaskGroup() as group:
        for request in requests:
            await asyncio.sleep(max(0.0, began + (request.arrival or 0.0) - perf_counter()))
            group.create_task(send(request))


async def closed_loop(requests: Iterator[PlannedRequest], send: Send, *, streams: int, until: float) -> None:
    """Send requests on this number of streams, one at a time on each, until `time.perf_counter` has reached
    `until`. `send` must not raise exceptions."""

    async def stream() -> None:
        for request in requests:  # all streams take from the same iterator
            await send(request)
            if perf_counter() >= until:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
