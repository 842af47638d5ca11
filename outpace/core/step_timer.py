"""Timing of the parts of a decoding step."""

from __future__ import annotations

from time import perf_counter


class StepTimer:
    """Measures the time of one step by part: draft, score, warp, verify, commit, observe."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start timing a new step."""
        self.seconds: dict[str, float] = {}  # part -> seconds
        self._last = perf_counter()

    def record(self, part: str, *, warping: float = 0.0) -> None:
        """Record the seconds since the last call as the time of `part`. `warping` seconds of them, spent on
        sampling parameters, are recorded as part "warp" instead."""
        now = perf_counter()
        self.seconds[part] = now - self._last - warping
        if warping:
            self.seconds["warp"] = warping
        self._last = now
