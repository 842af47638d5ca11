"""`outpace export`: write a draft head or draft model for another engine, and print how it is started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outpace.cli import options as o
from outpace.cli.failures import Debug, report_failures
from outpace.cli.output import print_status
from outpace.cli.recipe_options import TARGET


@report_failures
def export(
    drafter: Annotated[
        str,
        typer.Argument(
            help="A head or a draft model: a folder, as of `outpace train`, zoo:NAME, or for a draft model a "
            "name on the Hugging Face Hub."
        ),
    ],
    *,
    engine: Annotated[str, typer.Option(help="vllm, sglang or transformers.")],
    target: o.Target = TARGET,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")],
    dtype: o.Dtype = "auto",
    device: o.Device = None,
    revision: o.Revision = None,
    trust_remote_code: o.Trust = False,
    allow_pickle: o.AllowPickle = False,
    debug: Debug = False,
) -> None:
    """Write a draft head or draft model in the layout that another engine reads, and print the command, for
    transformers the program, that runs it there with the target."""
    from outpace.api.engines import ENGINES

    if engine not in ENGINES:  # before the target is loaded, which can take minutes
        raise ValueError(f"there is no engine {engine}: --engine takes {', '.join(ENGINES)}")
    with o.importing():
        from outpace.api.export import export as run
    model = o.load_model(
        target,
        dtype=dtype,
        device=device,
        revision=revision,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
    )
    command = run(drafter, engine=engine, target=model, output=output)
    print_status(f"{output} is for {ENGINES[engine].title}; this runs it with the target:")
    typer.echo(command)
