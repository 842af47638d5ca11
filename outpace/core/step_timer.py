"""Timing of the parts of a decoding step."""

from __future__ import annotations

import torch

from outpace.core.clock import Mark, Seconds, clock_of, host_clock

HOST = torch.device("cpu")


class StepTimer:
    """Measures the time of one step by part: draft, score, warp, verify, commit, observe; and, as part
    "caller", the time between the step before and this one, which the caller of the session used. The parts
    of a step together are the time on the host's clock since the step before.

    Parts up to the verdict are timed by the clock of the device, which does its work later than it is
    launched. When the verdict is on the host, the device has done that work, so reading its times waits for
    nothing, and the host's clock times the rest. "commit" is launched then; what the device still does for it
    when the next step begins is in the "commit" of that step."""

    def __init__(self, device: torch.device = HOST) -> None:
        self.seconds: dict[str, float] = {}  # part -> seconds
        self._clock = clock_of(device)
        self._parts: list[tuple[str, Seconds]] = []  # parts of this step that the device has not done yet
        self._mark: Mark | None = None  # the end of the last of them; None once they are done
        self.reset()

    def reset(self) -> None:
        """The next step does not follow another one."""
        self._last: float | None = None  # when the last part ended, on the host

    def restart(self) -> None:
        """Start timing a new step."""
        self._began = now = host_clock().at
        self.seconds = {} if self._last is None else {"caller": now - self._last}
        self._parts.clear()
        self._mark = self._clock()

    def record(self, part: str) -> None:
        """Record the time since the last call as that of `part`."""
        if self._mark is None:
            assert self._last is not None
            now = host_clock().at
            self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
            self._last = now
            return
        mark = self._clock()
        self._parts.append((part, self._mark.until(mark)))
        self._mark = mark

    def settle(self, part: str, *, warping: Seconds = 0.0) -> None:
        """`record` the last part that the clock of the device times: its work has been done, or is waited for
        now. The time `warping` of it, spent on sampling parameters, is recorded as part "warp" instead."""
        self.record(part)
        done = 0.0
        for each, taken in self._parts:
            self.seconds[each] = self.seconds.get(each, 0.0) + float(taken)
            done += float(taken)
        if warped := float(warping):
            self.seconds[part] -= warped
            self.seconds["warp"] = warped
        self._mark, self._last = None, host_clock().at
        self.seconds["commit"] = max(0.0, self._last - self._began - done)
