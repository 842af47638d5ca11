"""Arguments of `outpace serve`, read by its own parser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from outpace.cli.app import app


def read_arguments(command: Sequence[str]) -> dict[str, Any]:
    """The values of all options of a command `outpace serve ...`, whose first word may be a path. Raises the
    parser's UsageError."""
    program, verb, *arguments = command
    assert program.rpartition("/")[2] == "outpace" and verb == "serve"
    return typer.main.get_group(app).commands["serve"].make_context("serve", list(arguments)).params
