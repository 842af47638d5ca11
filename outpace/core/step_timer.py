"""Timing of the parts of a decoding step."""

from __future__ import annotations

import torch

from outpace.core.clock import Mark, Seconds, clock_of, host_clock

HOST = torch.device("cpu")


class StepTimer:
    """Measures the time of one step by part: draft, score, warp, verify, commit, observe; and, as part
    "caller", the time between the step before and this one, which the caller of the session used.

    Parts up to the verdict are timed by the clock of the device, which does its work later than it is
    launched. When the verdict is on the host, the device has done that work, and the host's clock times the
    rest. What the device still does for "commit" while the host goes on is in no part."""

    def __init__(self, device: torch.device = HOST) -> None:
        self.seconds: dict[str, float] = {}  # part -> seconds
        self._clock = clock_of(device)
        self._mark: Mark | None = None  # the end of the last part; None once the verdict is on the host
        self._parts: list[tuple[str, Seconds, Seconds]] = []  # name, time, and time of warping in it
        self.reset()

    def reset(self) -> None:
        """The next step does not follow another one."""
        self._last: float | None = None  # when the last part ended, on the host

    def restart(self) -> None:
        """Start timing a new step."""
        now = host_clock().at
        self.seconds = {} if self._last is None else {"caller": now - self._last}
        self._parts.clear()
        self._mark = self._clock()

    def record(self, part: str, *, warping: Seconds = 0.0, settle: bool = False) -> None:
        """Record the time since the last call as that of `part`. The time `warping` of it, spent on sampling
        parameters, is recorded as part "warp" instead. `settle`: the device has done the work of the parts
        so far, or is waited for; later parts are work of the host."""
        if self._mark is None:
            assert self._last is not None
            now = host_clock().at
            self.seconds[part], self._last = now - self._last, now
            return
        mark = self._clock()
        self._parts.append((part, self._mark.until(mark), warping))
        self._mark = mark
        if settle:
            self._settle()

    def _settle(self) -> None:
        for part, taken, warping in self._parts:
            warped = float(warping)
            self.seconds[part] = float(taken) - warped
            if warped:
                self.seconds["warp"] = warped
        self._mark, self._last = None, host_clock().at
