"""Progress bars on the error stream."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

DELAY = 3.0  # seconds of work before a bar is shown


@contextmanager
def progress(total: int) -> Iterator[Callable[[str, int], None]]:
    """A progress bar on a terminal's error stream, shown if the work takes longer than `DELAY`.

    Yields a function that takes the label of the current work and by how much to advance.
    """
    if not sys.stderr.isatty():
        yield lambda label, done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
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
