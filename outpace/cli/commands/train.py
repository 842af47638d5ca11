"""`outpace train`: train a draft head for a target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outpace.cli import options as o
from outpace.cli.failures import Debug, report_failures
from outpace.cli.output import print_status
from outpace.cli.recipe_options import TARGET


@report_failures
@o.with_groups
def train(
    method: Annotated[str, typer.Argument(help="eagle, hass or eagle3.")],
    target: o.Target = TARGET,
    *,
    data: Annotated[
        str,
        typer.Option(help="builtin:code, or a file of prompts: .jsonl with prompt or messages in each line."),
    ] = "builtin:code",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the head and the run's state.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting, as in steps=500; may be repeated."),
    ] = None,
    show_settings: Annotated[
        bool, typer.Option("--show-settings", help="Print the settings and stop.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write an untrained head.")] = False,
    loading: o.LoadingOptions,
    debug: Debug = False,
) -> None:
    """Train a draft head for a target: the target answers the prompts of the data, and the head learns to
    continue its hidden states. A run that was stopped continues when it is started again."""
    from outpace.training.config import TrainConfig, changed
    from outpace.training.config import settings as all_settings
    from outpace.training.run import train as run

    config = changed(TrainConfig(), settings or ())
    if show_settings:
        for name, value in all_settings(config).items():
            typer.echo(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
        return
    model = loading.load(target)
    found = run(method, target=model, data=data, output=output, config=config, dry_run=dry_run)
    if dry_run:
        print_status(f"an untrained head is in {found.folder}")
        return
    print_status(f"learned from {found.num_texts} texts of {found.num_tokens} tokens")
    for each in found.evaluations[-1:]:
        shares = ", ".join(f"{share:.0%}" for share in each.agreement)
        print_status(f"held-out acceptance length of greedy chains {each.acceptance_length:.2f} ({shares})")
    print_status(f"use it: outpace generate --target {target} --method {method} --head {found.folder}")
