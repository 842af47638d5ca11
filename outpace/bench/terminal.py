"""Progress and tables on a terminal; plain lines where there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from outpace.bench.table import Table, plain_text


@contextmanager
def progress(total: int) -> Iterator[Callable[[str, int], None]]:
    """A bar on the error stream: told what is going on, and by how much to advance."""
    if not sys.stderr.isatty():
        yield lambda label, done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda label, done: bar.update(task, advance=done, description=label)


def show(tables: Sequence[Table]) -> None:
    """Write tables to the output."""
    if not sys.stdout.isatty():
        print("\n\n".join(map(plain_text, tables)), flush=True)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Drawn

    console = Console()
    for table in tables:
        drawn = Drawn(title=table.title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
        for index, column in enumerate(table.columns):
            # numbers stay whole, words of the head may wrap, and the name gets what is left
            widest = max([*map(len, column.split()), *(len(row[index]) for row in table.rows)])
            drawn.add_column(
                column, justify="right" if index else "left", overflow="fold", width=widest if index else None
            )
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)
