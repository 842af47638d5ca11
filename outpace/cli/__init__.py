"""The command line: one file per verb, recipe options made from recipe signatures."""

from __future__ import annotations

import typer

from outpace.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """What the `outpace` command runs."""
    typer.main.get_command(app)(prog_name="outpace")
