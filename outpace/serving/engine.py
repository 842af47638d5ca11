"""The engine of a server: a thread that decodes the requests of all clients."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Condition, Thread
from typing import Any

from outpace.core.contracts import Step
from outpace.serving.request import Event, GenerationRequest
from outpace.serving.scheduler import Scheduler, Ticket

log = logging.getLogger(__name__)


class QueueFull(Exception):
    """Too many requests are waiting."""


class Closed(Exception):
    """The engine is shutting down."""


class Engine:
    """Runs a scheduler in a thread of its own. Requests may be submitted and cancelled from any thread; their
    events are passed on in the engine's thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        tokenizer: Any,
        *,
        max_waiting: int = 1024,  # most requests that wait
        on_step: Callable[[Step], None] = lambda step: None,  # called after every step, in the thread
    ) -> None:
        self._scheduler, self._tokenizer = scheduler, tokenizer
        self._max_waiting, self._on_step = max_waiting, on_step
        self._changed = Condition()  # protects the fields below
        self._submitted: list[Ticket] = []
        self._cancelled: list[Ticket] = []
        self._is_closed = self._is_drained = False
        self._thread = Thread(target=self._run, name="outpace-engine", daemon=True)

    def start(self) -> None:
        """Start decoding."""
        self._thread.start()

    def close(self, *, drain: bool = True, timeout: float | None = None) -> bool:
        """Refuse new requests and stop, after the present requests have ended or, without `drain`, have been
        cancelled. Returns whether that happened within `timeout` seconds."""
        with self._changed:
            self._is_closed, self._is_drained = True, self._is_drained or not drain
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def submit(self, request: GenerationRequest, on_event: Callable[[Event], None]) -> Ticket:
        """Add a request to the queue. Raises QueueFull or Closed."""
        ticket = Ticket(request, on_event, self._tokenizer)
        with self._changed:
            if self._is_closed:
                raise Closed("the server is shutting down: send the request to another one")
            if self.num_waiting >= self._max_waiting:
                raise QueueFull(f"{self._max_waiting} requests are waiting: try again later")
            self._submitted.append(ticket)
            self._changed.notify_all()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """End a request before its next step."""
        with self._changed:
            self._cancelled.append(ticket)
            self._changed.notify_all()

    @property
    def num_running(self) -> int:
        """Number of requests that are being decoded."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Number of requests that have not joined, or have left for lack of memory."""
        return len(self._scheduler.waiting) + len(self._submitted)

    def _run(self) -> None:
        scheduler = self._scheduler
        while self._take():
            try:
                step = scheduler.step()
                if step is not None:
                    self._on_step(step)
            except Exception:  # without the thread no request would ever end
                log.exception("decoding failed, and with it the requests that were being decoded")

    def _take(self) -> bool:
        """Pass what was submitted and cancelled to the scheduler, and wait while there is no request; False
        when the engine is to stop."""
        scheduler = self._scheduler
        with self._changed:
            while not (self._submitted or self._cancelled or self._is_closed) and not (
                scheduler.running or scheduler.waiting
            ):
                self._changed.wait()
            submitted, self._submitted = self._submitted, []
            cancelled, self._cancelled = self._cancelled, []
            is_drained = self._is_drained
        for ticket in submitted:
            scheduler.submit(ticket)
        if is_drained:
            cancelled += [*scheduler.running.values(), *scheduler.waiting]
        for ticket in cancelled:
            scheduler.cancel(ticket)
        return bool(scheduler.running or scheduler.waiting) or not self._is_closed
