"""Progress on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread, Timer
from time import monotonic

DELAY = 2.0  # seconds of work before the bar appears
LINES = 10.0  # seconds between two lines where there is no terminal
AT_ONCE = 1.0  # units reported within this time were done before, as by a run that is continued


@contextmanager
def progress(
    total: int | None, label: str = "", *, refresh_rate: float = 10.0
) -> Iterator[Callable[[str, int], None]]:
    """A context manager that shows on standard error how far work is, with an estimate of the time left: on a
    terminal as a bar, after `DELAY` seconds; elsewhere as lines, every `LINES` seconds in which something
    changed.

    `total` is the number of units of work (None: unknown), `label` what is done at first, `refresh_rate` how
    often per second the bar is drawn. Yields a function that takes a label and the number of units just done.
    """
    pace = Pace(total, label)
    shown = _bar(pace, refresh_rate) if sys.stderr.isatty() else _lines(pace)
    with shown as advance:
        yield advance


class Pace:
    """What is done of some work, and an estimate of the time left."""

    def __init__(self, total: int | None, label: str) -> None:
        self.total, self.label, self.num_done = total, label, 0
        self._began, self._num_before = monotonic(), 0

    def advance(self, label: str, done: int) -> None:
        """`done` units more are done, and `label` is done now."""
        self.label, self.num_done = label, self.num_done + done
        if monotonic() - self._began < AT_ONCE:
            self._num_before = self.num_done

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until all is done; None without an estimate."""
        num_timed = self.num_done - self._num_before
        if not self.total or num_timed < 1:
            return None
        return (monotonic() - self._began) / num_timed * max(0, self.total - self.num_done)

    def __str__(self) -> str:
        """Units done of all, and the time left, as far as they are known."""
        if not self.total:
            return ""
        left = self.seconds_left
        return f"{self.num_done} of {self.total}" + ("" if left is None else f", {in_words(left)} left")


def in_words(seconds: float) -> str:
    """A duration to two digits or so: 40 s, 12 min, 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def _lines(pace: Pace) -> Iterator[Callable[[str, int], None]]:
    ended = Event()

    def report() -> None:
        last = ("", -1)
        while not ended.wait(LINES):
            now = pace.label, 100 * pace.num_done // (pace.total or 1)
            if now != last:
                text = ": ".join(filter(None, ("outpace", pace.label, str(pace))))
                print(text, file=sys.stderr, flush=True)
                last = now

    thread = Thread(target=report, daemon=True)
    thread.start()
    try:
        yield pace.advance
    finally:
        ended.set()
        thread.join()


@contextmanager
def _bar(pace: Pace, refresh_rate: float) -> Iterator[Callable[[str, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Rest(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(str(pace))

    columns = (TextColumn("{task.description}"), BarColumn(), Rest())
    bar = Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=refresh_rate)
    task = bar.add_task(pace.label, total=pace.total)

    def advance(label: str, done: int) -> None:
        pace.advance(label, done)
        bar.update(task, completed=pace.num_done, description=label)

    timer = Timer(DELAY, bar.start)  # also if the first unit takes longer than that
    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:
            bar.stop()
