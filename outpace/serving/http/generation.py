"""The samples of one HTTP request while the engine decodes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from threading import Lock

from outpace.api.row_output import Result
from outpace.serving.engine_thread import Closed, EngineThread, QueueFull
from outpace.serving.http.errors import ApiError
from outpace.serving.http.metrics import Metrics
from outpace.serving.request import Event, Failed, Finished, GenerationRequest
from outpace.serving.scheduler import Ticket


class Generation:
    """Submits samples to the engine and receives their events in the event loop, however slowly the client
    reads. It must be closed, which cancels what is not finished."""

    def __init__(self, engine: EngineThread, requests: Sequence[GenerationRequest]) -> None:
        self.requests = requests
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._unfinished = set(range(len(requests)))
        self._lock = Lock()  # protects the fields below: samples are submitted in a thread
        self._tickets: list[Ticket] = []
        self._is_closed = False

    async def submit(self, metrics: Metrics, arrived: float) -> None:
        """Submit the samples. ApiError if there is no place for all of them in the queue, or if the engine is
        shutting down; then none is left in it."""
        try:
            await asyncio.to_thread(self._submit, metrics, arrived)
        except BaseException:
            self.close()
            raise

    def _submit(self, metrics: Metrics, arrived: float) -> None:
        for index, request in enumerate(self.requests):
            on_event = partial(self._pass_on, index, metrics.sample(len(request.prompt), arrived))
            with self._lock:
                if self._is_closed:
                    return
                try:
                    self._tickets.append(self._engine.submit(request, on_event))
                except QueueFull as error:
                    raise ApiError(
                        429, str(error), code="queue_full", headers={"Retry-After": "1"}
                    ) from error
                except Closed as error:
                    raise ApiError(503, str(error)) from error

    def _pass_on(self, index: int, count: Callable[[Event], None], event: Event) -> None:
        count(event)
        self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """Index of a sample and its next event, until all samples are finished. ApiError if one fails."""
        while self._unfinished:
            index, event = await self._events.get()
            if isinstance(event, Failed):
                raise ApiError(500 if event.is_fault_of_server else 400, event.reason)
            if isinstance(event, Finished):
                self._unfinished.discard(index)
                if event.result.finish_reason is None:
                    raise ApiError(503, "the server shut down before the answer was complete: ask again")
            yield index, event

    async def results(self) -> list[Result]:
        """The results of the samples, in order. ApiError if one fails."""
        found: dict[int, Result] = {}
        async for index, event in self.events():
            if isinstance(event, Finished):
                found[index] = event.result
        return [found[index] for index in range(len(self.requests))]

    def close(self) -> None:
        """Cancel the samples that are not finished."""
        with self._lock:
            self._is_closed = True
            for index, ticket in enumerate(self._tickets):
                if index in self._unfinished:
                    self._engine.cancel(ticket)
            # tickets refer to this object too: prompts would stay in memory until the next garbage collection
            self._tickets.clear()
