"""Points in time of a device's work, and the seconds between them.

A GPU runs its kernels after the host has launched them, so the host's clock would charge their time to the
code that next waits for the GPU. On a GPU a mark is therefore a CUDA event in its stream, and the time
between two marks is known once both events have passed.

Not run on a GPU so far: the tests have events of a device that completes its work later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch


class Elapsed:
    """Seconds between marks of a device. Reading them waits until the device has passed the marks."""

    def __init__(self, spans: tuple[Callable[[], float], ...] = (), known: float = 0.0) -> None:
        self._spans, self._known = spans, known

    def __float__(self) -> float:
        self._known += sum(span() for span in self._spans)
        self._spans = ()
        return self._known

    def __add__(self, other: Elapsed | float) -> Elapsed:
        if isinstance(other, Elapsed):
            return Elapsed(self._spans + other._spans, self._known + other._known)
        return Elapsed(self._spans, self._known + other)

    __radd__ = __add__  # of a float


Seconds = Elapsed | float


class Mark(Protocol):
    """A point in time."""

    def until(self, end: Any) -> Seconds:
        """The time between this mark and a later one of the same clock."""
        ...


Clock = Callable[[], Mark]  # -> a mark after the work that was launched so far


@dataclass(slots=True)  # frozen, making one would take a CPU twice as long, several times a step
class HostMark:
    """The time on the host, where work is done when the call returns."""

    at: float  # seconds

    def until(self, end: HostMark) -> float:
        return end.at - self.at


def host_clock() -> HostMark:
    """The host's clock."""
    return HostMark(perf_counter())


@dataclass(frozen=True, slots=True)
class CudaMark:
    """A CUDA event in the stream of a GPU's work."""

    event: torch.cuda.Event

    def until(self, end: CudaMark) -> Elapsed:
        def read() -> float:
            end.event.synchronize()
            return self.event.elapsed_time(end.event) / 1000  # from milliseconds

        return Elapsed((read,))


def clock_of(device: torch.device) -> Clock:
    """The clock for work on this device."""
    if device.type != "cuda":
        return host_clock

    def mark() -> CudaMark:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return CudaMark(event)

    return mark
