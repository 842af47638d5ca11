"""`outpace train`: train a drafter for a target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outpace.cli import options as o
from outpace.cli.failures import Debug, report_failures
from outpace.cli.output import print_status
from outpace.cli.recipe_options import TARGET

SHARED_SETTINGS = ("answers", "capture", "optimizer")  # parts of the settings that all methods read


@report_failures
@o.with_groups
def train(
    method: Annotated[
        str,
        typer.Argument(
            help="What is trained: a head, as by eagle3 or medusa; a draft model, as by distillspec or "
            "fastdraft; a predictor for one of them, as by disco or adaeagle; the target itself, by "
            "layerskip. An unknown name lists all methods."
        ),
    ],
    target: o.Target = TARGET,
    *,
    data: Annotated[
        str,
        typer.Option(
            help="builtin:code, or a file of prompts: .jsonl with prompt or messages in each line, or a "
            "text with one in each line."
        ),
    ] = "builtin:code",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the drafter and the run's state.")
    ],
    draft: Annotated[
        str | None, typer.Option(help="The draft model to train, or to predict the acceptance of.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="A head to begin with, in place of a new one; the head whose lengths adaeagle predicts, or "
            "that names the candidates of specee.",
        ),
    ] = None,
    captured: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the target's answers and hidden states, which runs with the same target, data, "
            "settings of the answers, length and held_out may share; default: in OUTPUT.",
        ),
    ] = None,
    general: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Data of other domains: reports what is forgotten of them (domain-drafter).",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting, as in steps=500; may be repeated."),
    ] = None,
    show_settings: Annotated[
        bool, typer.Option("--show-settings", help="Print the settings that the method reads, and stop.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write an untrained drafter.")] = False,
    loading: o.LoadingOptions,
    debug: Debug = False,
) -> None:
    """Train a drafter for a target: the target answers the prompts of the data, and a head or a draft model
    learns to continue as it does. A run that was stopped continues when it is started again."""
    with o.importing():
        from outpace.training.run import train as run
    from outpace.training.config import changed
    from outpace.training.config import settings as all_settings
    from outpace.training.methods import named
    from outpace.training.trainer import processes

    trains = named(method)
    config = changed(trains.defaults(), settings or ())
    if show_settings:
        for name, value in all_settings(config).items():
            part = name.partition(".")[0]
            if part == name or part in (*SHARED_SETTINGS, *trains.settings):
                typer.echo(f"{name}={_text(value)}")
        return
    # Before the target is loaded, which can take minutes: wrong arguments are reported at once. `run` repeats
    # these checks for callers from Python.
    trains.check_start(draft, head, general)
    if not dry_run:
        processes()
    model = loading.load(target)
    try:
        found = run(
            method,
            target=model,
            data=data,
            output=output,
            draft=draft,
            head=head,
            config=config,
            captured=captured,
            general=general,
            dry_run=dry_run,
        )
    except KeyboardInterrupt:
        print_status("start the same command again to go on with this run")
        raise
    if dry_run:
        print_status(f"an untrained drafter is in {found.folder}")
        return
    if found.growth is not None:
        for line in found.growth.findings:
            print_status(line)
    print_status(f"learned from {found.num_texts} texts of {found.num_tokens} tokens")
    for each in found.evaluations[-1:]:
        for line in each.findings:
            print_status(line)
    for use in trains.uses(str(found.folder), target, draft or head):
        print_status(f"use it: outpace generate {use}")


def _text(value: Any) -> str:
    """A setting as it is given on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
