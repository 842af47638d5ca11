"""Clients of a scheduler without a server."""

from __future__ import annotations

from collections.abc import Callable

from outpace.api.row_output import Piece, Result
from outpace.serving.request import Event, Finished, GenerationRequest
from outpace.serving.scheduler import Scheduler, Ticket


class Client:
    """A request with the events that it received."""

    def __init__(self, scheduler: Scheduler, given: GenerationRequest) -> None:
        self.request, self.events = given, list[Event]()
        self.ticket = Ticket(given, self.events.append)
        scheduler.submit(self.ticket)

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.events if isinstance(event, Piece) for token in event.tokens]

    @property
    def result(self) -> Result:
        assert isinstance(last := self.events[-1], Finished)
        return last.result


def run(scheduler: Scheduler, after: Callable[[int], None] = lambda step: None) -> list[int]:
    """Run to the end; returns the memory held after each step."""
    held: list[int] = []
    while scheduler.waiting or scheduler.running:
        if scheduler.step() is not None:
            held.append(scheduler.num_bytes)
            after(len(held))
    assert scheduler.num_bytes == 0
    return held
