"""The command line: one file per subcommand. Options of methods come from the signatures of recipes."""

from __future__ import annotations

import sys
from io import TextIOWrapper

import typer

from outpace.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """Entry point of the `outpace` command."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for characters that a terminal or pipe has not
    typer.main.get_command(app)(prog_name="outpace")
