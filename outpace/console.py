"""Progress bars on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

DELAY = 3.0  # seconds of work before the bar appears


@contextmanager
def progress(total: int, *, refresh_rate: float = 10.0) -> Iterator[Callable[[str, int], None]]:
    """A context manager with a progress bar on standard error; shown only on a terminal, after `DELAY`
    seconds.

    `total` is the number of units of work, `refresh_rate` how often per second the bar is drawn. Yields a
    function that takes a label and the number of units just done.
    """
    if not sys.stderr.isatty():
        yield lambda label, done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=refresh_rate)
    task = bar.add_task("", total=total)
    began = monotonic()

    def advance(label: str, done: int) -> None:
        bar.update(task, advance=done, description=label)
        if not bar.live.is_started and monotonic() - began > DELAY:
            bar.start()

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()
