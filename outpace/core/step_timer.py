"""Where the time of a decoding step goes."""

from __future__ import annotations

from time import perf_counter


class StepTimer:
    """Splits the time of one step among the parts of the loop."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new step begins."""
        self.seconds: dict[str, float] = {}  # part -> seconds
        self._last = perf_counter()

    def record(self, part: str, *, warping: float = 0.0) -> None:
        """Record the time since the last call as this part's, less what was spent on warping the target's
        logits."""
        now = perf_counter()
        self.seconds[part] = now - self._last - warping
        if warping:
            self.seconds["warp"] = warping
        self._last = now
