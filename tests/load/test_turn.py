"""Open and closed loop, with a fake server."""

from __future__ import annotations

import asyncio
from math import inf
from time import perf_counter
from types import SimpleNamespace

import pytest

from benchmarks.load import turn
from benchmarks.load.plan import PlannedRequest
from benchmarks.load.turn import closed_loop, open_loop
from outpace.bench.measure.workload import WorkloadItem

ITEM = WorkloadItem("p/0", "p", ("text",), False)
DEADLOCK = 30.0  # seconds after which a test that waits for ever fails


def requests(number: int, arrival: float | None):
    return iter([PlannedRequest(ITEM, seed, arrival) for seed in range(number)])


def test_an_open_loop_sends_without_waiting_for_answers():
    async def run() -> int:
        all_sent, sent = asyncio.Event(), []

        async def send(request: PlannedRequest) -> None:
            sent.append(request)
            if len(sent) == 20:
                all_sent.set()
            await all_sent.wait()  # nothing is answered before everything is sent

        await asyncio.wait_for(open_loop(requests(20, 0.0), send, perf_counter()), DEADLOCK)
        return len(sent)

    assert asyncio.run(run()) == 20


def test_requests_are_sent_at_their_arrival_times_since_the_beginning(monkeypatch: pytest.MonkeyPatch):
    clock, sleep = SimpleNamespace(now=100.0), asyncio.sleep

    async def slept(seconds: float) -> None:
        await sleep(0)  # what is due begins before the clock moves on
        clock.now += seconds

    async def run() -> list[float]:
        began, sent = clock.now - 0.5, list[float]()  # the first two are due at once

        async def send(request: PlannedRequest) -> None:
            sent.append(clock.now - began)

        planned = iter([PlannedRequest(ITEM, 0, arrival) for arrival in (0.25, 0.5, 0.75, 1.0, 1.25)])
        await open_loop(planned, send, began)
        return sent

    monkeypatch.setattr(turn, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(asyncio, "sleep", slept)
    assert asyncio.run(run()) == [0.5, 0.5, 0.75, 1.0, 1.25]


def test_a_closed_loop_keeps_this_number_of_streams_busy():
    async def run() -> tuple[list[int], int]:
        seeds, busy, most = list[int](), 0, 0

        async def send(request: PlannedRequest) -> None:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0)
            busy -= 1
            seeds.append(request.seed)

        await asyncio.wait_for(closed_loop(requests(20, None), send, streams=4, until=inf), DEADLOCK)
        return seeds, most

    seeds, most = asyncio.run(run())
    assert (sorted(seeds), most) == (list(range(20)), 4)


def test_a_closed_loop_ends_at_its_time():
    async def run() -> int:
        sent: list[PlannedRequest] = []

        async def send(request: PlannedRequest) -> None:
            sent.append(request)

        await closed_loop(requests(20, None), send, streams=2, until=perf_counter())
        return len(sent)

    assert asyncio.run(run()) == 2  # one on each stream


def test_a_stream_goes_on_until_its_time():
    async def run() -> int:
        until, sent = perf_counter() + 0.05, list[PlannedRequest]()

        async def send(request: PlannedRequest) -> None:
            sent.append(request)
            await asyncio.sleep(0.06 if len(sent) == 8 else 0)

        await asyncio.wait_for(closed_loop(requests(20, None), send, streams=1, until=until), DEADLOCK)
        return len(sent)

    assert asyncio.run(run()) == 8
