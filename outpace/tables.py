"""Tables as plain data, printed by rich on standard output or written as Markdown into reports and docs."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

NUMBER = re.compile(r"[-+]?[.\d]")
PIPE_WIDTH = 240  # characters per line when output is not a terminal, so that rich wraps nothing


@dataclass(frozen=True)
class Table:
    """A title, column names, rows of cells as text, and a note printed below."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def print_tables(tables: Sequence[Table]) -> None:
    """Print tables to standard output; numeric columns are aligned right, all others left."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    terminal = sys.stdout.isatty()
    console = Console(highlight=False, soft_wrap=not terminal, width=None if terminal else PIPE_WIDTH)
    for table in tables:
        drawn = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for index, column in enumerate(table.columns):
            # cells after the first column are never wrapped; column names may wrap between words
            widest = max([*map(len, column.split()), *(len(row[index]) for row in table.rows)])
            drawn.add_column(
                Text(column),
                justify="right" if _is_numeric([row[index] for row in table.rows]) else "left",
                overflow="fold",
                min_width=widest if index and terminal else None,
            )
        for row in table.rows:
            drawn.add_row(*map(Text, row))
        if table.title:
            console.print(Text(table.title, style="bold"))
        console.print(drawn)
        if table.note:
            console.print(Text(table.note, style="dim"))
        console.print()


def _is_numeric(cells: Sequence[str]) -> bool:
    return any(cells) and all(cell in ("", "-") or NUMBER.match(cell) for cell in cells)


def markdown(table: Table, level: int = 3) -> str:
    """The table as Markdown: its title as a heading of this level, the rows, and its note."""
    columns = range(len(table.columns))
    aligned = tuple("---:" if _is_numeric([row[i] for row in table.rows]) else "---" for i in columns)
    rows = [table.columns, aligned, *table.rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    heading = [f"{'#' * level} {table.title}", ""] if table.title else []
    return "\n".join([*heading, *lines, *(["", table.note] if table.note else [])])
