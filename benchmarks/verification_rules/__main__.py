"""The exact verification rules compared: `python -m benchmarks.verification_rules acceptance` or `times`."""

from __future__ import annotations

import typer

from benchmarks.verification_rules.acceptance import acceptance
from benchmarks.verification_rules.times import times

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, help=(__doc__ or "").split(":")[0])
app.command()(acceptance)
app.command()(times)

if __name__ == "__main__":
    app(prog_name="python -m benchmarks.verification_rules")
