"""`outpace train`: train a drafter for a target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outpace.cli import options as o
from outpace.cli.failures import Debug, report_failures
from outpace.cli.output import print_status
from outpace.cli.recipe_options import TARGET


@report_failures
@o.with_groups
def train(
    method: Annotated[
        str,
        typer.Argument(
            help="A head: eagle, hass, eagle3, medusa, hydra, mlp-speculator, redrafter, kangaroo. A draft "
            "model: distillspec, adaspec, direct-alignment, fastdraft, s2d, multilingual-drafter, "
            "domain-drafter. A predictor of acceptance: specdec-pp, disco; of draft lengths: adaeagle; of "
            "early exits: specee. The target itself: layerskip."
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
    from outpace.training.methods import (
        DRAFT_MODELS,
        EXIT_MODELS,
        EXIT_PREDICTORS,
        LENGTH_PREDICTORS,
        PREDICTORS,
        ROUTED,
        TARGETS,
        check_start,
        defaults,
        setting_parts,
    )
    from outpace.training.trainer import processes

    config = changed(defaults(method), settings or ())
    if show_settings:
        for name, value in all_settings(config).items():
            part = name.partition(".")[0]
            if part == name or part in setting_parts(method):
                typer.echo(f"{name}={_text(value)}")
        return
    # Before the target is loaded, which can take minutes: wrong arguments are reported at once. `run` repeats
    # these checks for callers from Python.
    check_start(method, draft, head, general)
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
    if method in ROUTED:
        used = f"{method} --draft {draft} --specialists {found.folder}"
    elif method in DRAFT_MODELS:
        used = f"speculative-sampling --draft {found.folder}"
    elif method in EXIT_MODELS:
        used = f"{method} --draft {found.folder}"
    elif method in TARGETS:
        print_status(f"use it: outpace generate --target {found.folder} --method {method}")
        return
    elif method in PREDICTORS:
        used = f"{method} --draft {draft} --predictor {found.folder}"
    elif method in (*LENGTH_PREDICTORS, *EXIT_PREDICTORS):
        used = f"{method} --head {head} --predictor {found.folder}"
    else:
        used = f"{method} --head {found.folder}"
    print_status(f"use it: outpace generate --target {target} --method {used}")


def _text(value: Any) -> str:
    """A setting as it is given on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
