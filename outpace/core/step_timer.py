"""Timing of the parts of a decoding step."""

from __future__ import annotations

from time import perf_counter


class StepTimer:
    """Measures the time of one step by part: draft, score, warp, verify, commit, observe; and, as part
    "caller", the time between the step before and this one, which the caller of the session used."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}  # part -> seconds
        self.reset()

    def reset(self) -> None:
        """The next step does not follow another one."""
        self._last: float | None = None

    def restart(self) -> None:
        """Start timing a new step."""
        now = perf_counter()
        self.seconds = {} if self._last is None else {"caller": now - self._last}
        self._last = now

    def record(self, part: str, *, warping: float = 0.0) -> None:
        """Record the seconds since the last call as the time of `part`. `warping` seconds of them, spent on
        sampling parameters, are recorded as part "warp" instead."""
        now = perf_counter()
        assert self._last is not None
        self.seconds[part] = now - self._last - warping
        if warping:
            self.seconds["warp"] = warping
        self._last = now
