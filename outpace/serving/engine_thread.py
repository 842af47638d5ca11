"""The engine of a server: a thread that decodes the requests of all clients."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Condition, Thread
from time import monotonic
from typing import Any

from outpace.serving.request import Event, Failed, GenerationRequest
from outpace.serving.scheduler import FAILED, Scheduler, Ticket

ENDED = "the server's decoding thread has ended"
STUCK_SECONDS = 120.0  # that a step of a large model on a slow machine does not take
log = logging.getLogger(__name__)


class QueueFull(Exception):
    """Too many requests are waiting."""


class Closed(Exception):
    """The engine is shutting down."""


class EngineThread:
    """Runs a scheduler in a thread of its own. Requests may be submitted and cancelled from any thread; their
    events are passed on in the engine's thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        tokenizer: Any,
        *,
        max_waiting: int = 1024,  # most requests that wait, besides those for which there is a free row
        stuck_seconds: float = STUCK_SECONDS,  # time of a step from which the engine counts as stuck
    ) -> None:
        self._scheduler, self._tokenizer = scheduler, tokenizer
        self._max_waiting, self._stuck_seconds = max_waiting, stuck_seconds
        self._changed = Condition()  # protects the fields below
        self._submitted: list[Ticket] = []
        self._cancelled: list[Ticket] = []
        self._is_closed = self._is_drained = self._has_failed = False
        self._step_began: float | None = None  # time of `monotonic`; None between steps
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
            if self._has_failed:
                raise Closed(f"{ENDED}: restart it")
            if self._is_closed:
                raise Closed("the server is shutting down: send the request to another one")
            if self.num_waiting >= self._max_waiting + self._scheduler.num_free_rows:
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

    @property
    def failure(self) -> str | None:
        """Why the engine decodes nothing, in one sentence; None if it works."""
        began = self._step_began
        if self._has_failed:
            return f"{ENDED}: restart it"
        if began is not None and monotonic() - began > self._stuck_seconds:
            return f"a decoding step has not ended for {self._stuck_seconds:g} s: restart the server"
        return None

    def _run(self) -> None:
        try:
            while self._take():
                self._step()
        except BaseException:
            log.exception("%s, and with it all requests", ENDED)
            self._abandon()

    def _step(self) -> None:
        self._step_began = monotonic()
        try:
            self._scheduler.step()
        except Exception:  # without the thread no request would ever end
            log.exception("decoding failed, and with it the requests that were being decoded")
        finally:
            self._step_began = None

    def _abandon(self) -> None:
        """Refuse new requests and fail the present ones."""
        scheduler = self._scheduler
        with self._changed:
            self._has_failed = True
            left = [*scheduler.running.values(), *scheduler.waiting, *self._submitted]
            self._submitted = []
        scheduler.running.clear()
        scheduler.waiting.clear()
        for ticket in left:
            ticket.on_event(Failed(FAILED, ticket.output.result(), True))

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
