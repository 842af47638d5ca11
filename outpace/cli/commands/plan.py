"""`outpace plan`: predict, before anything is bought or trained, whether speculation will pay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outpace.cli import options as o
from outpace.cli.failures import Debug, report_failures
from outpace.cli.output import print_json, print_status

Option = typer.Option


@report_failures
def plan(
    target: Annotated[
        str,
        Option("--target", "-t", help="The model: zoo:NAME, a folder, a name on the hub, or a config.json."),
    ] = "zoo:target",
    draft: Annotated[str | None, Option(help="A draft model, named in the same way.")] = None,
    head: Annotated[
        str | None,
        Option(help="A draft head: its folder, or a method such as eagle for one that is not trained yet."),
    ] = None,
    lookup: Annotated[bool, Option("--lookup", help="Drafts that are looked up in the text.")] = False,
    methods: Annotated[
        str | None,
        Option(help="Methods with fixed draft lengths in place of these, as in outpace bench."),
    ] = None,
    acceptance: Annotated[
        list[str] | None,
        Option(
            help="0.7, by position 0.8,0.7,0.5, by rank 0.7/0.1, or the JSON file of outpace replay; with "
            "several drafters draft=0.7. Default: measured."
        ),
    ] = None,
    hardware: Annotated[
        str | None,
        Option(help="A device such as h100-sxm, by its data sheet. Default: this machine, measured."),
    ] = None,
    bandwidth: Annotated[
        float | None, Option(min=0.001, help="GB/s of the memory of another device; needs --flops.")
    ] = None,
    flops: Annotated[float | None, Option(min=0.001, help="Its TFLOPS in the model's dtype.")] = None,
    memory: Annotated[float | None, Option(min=0.001, help="Its memory in GB.")] = None,
    batch: Annotated[str, Option(help="Batch sizes, separated by commas.")] = "1,2,4,8",
    context: Annotated[
        int | None,
        Option(min=4, help="Tokens of a text so far; default: as in the prompts, 1024 without them."),
    ] = None,
    longest: Annotated[int, Option(min=1, max=64, help="Most draft tokens per step.")] = 8,
    prompts: Annotated[str, Option(help="Prompt sets or files, to measure acceptance on.")] = "code",
    num_prompts: Annotated[
        int, Option(min=1, help="Maximum number of prompts of each set, spread evenly over it.")
    ] = 10,
    max_tokens: Annotated[int, Option(min=4, help="Maximum number of new tokens of an answer.")] = 64,
    temperature: Annotated[float, Option(min=0, help="Temperature of target and drafts.")] = 0.0,
    dtype: o.Dtype = "auto",
    weights: Annotated[str | None, Option(help="int8 or int4: compressed weights of the target.")] = None,
    draft_weights: Annotated[str | None, Option(help="The same for the draft model.")] = None,
    device: o.Device = None,
    compile: o.Compile = False,
    threads: Annotated[int | None, Option(min=1, help="CPU threads.")] = None,
    html: Annotated[Path | None, Option(help="Write the plan as a page here.")] = None,
    json: o.Json = False,
    debug: Debug = False,
) -> None:
    """Predict whether speculation will pay: speedups by batch size, the best drafts, and memory."""
    batches = whole_numbers("--batch", batch)
    if (bandwidth is None) != (flops is None):
        raise ValueError("a device has a bandwidth and arithmetic: give both --bandwidth and --flops")
    if hardware is not None and bandwidth is not None:
        raise ValueError(
            "--hardware names a device, --bandwidth and --flops describe another: give one of them"
        )
    if memory is not None and bandwidth is None:
        raise ValueError("--memory is that of a device given by --bandwidth and --flops: give them too")
    if methods is not None and (head is not None or lookup):
        raise ValueError("--methods names all methods: give --head and --lookup without it")
    from outpace.cost.hardware import hardware as known
    from outpace.cost.hardware import own_hardware

    named = known(hardware) if hardware is not None else None
    if bandwidth is not None and flops is not None:
        named = own_hardware(bandwidth, flops, memory, "bfloat16" if dtype == "auto" else dtype)
    with o.importing():
        from outpace.plan.make import Asked, plan_for
    from outpace.bench.measure import provenance
    from outpace.bench.report.files import check_writable
    from outpace.bench.report.json_file import finite
    from outpace.plan.report import commands, tables, to_html, to_json
    from outpace.tables import print_tables

    check_writable([html] if html else [])
    asked = Asked(
        target,
        draft,
        head,
        lookup,
        methods,
        tuple(acceptance or ()),
        batches,
        context,
        longest,
        prompts,
        num_prompts,
        max_tokens,
        temperature,
        dtype,
        weights,
        draft_weights,
    )
    with provenance.threads(threads):
        made = plan_for(asked, named, {"device": device, "compile": compile})
    if json:
        print_json(finite(to_json(made)))
    else:
        print_tables(tables(made))
        for sentence in made.measured:
            typer.echo(f"Measured: {sentence}")
        for sentence in made.assumed:
            typer.echo(f"Assumed: {sentence}")
        typer.echo(f"\nRecommendation: {made.recommendation}")
        for line in commands(made):
            typer.echo(line)
    if html:
        html.write_text(to_html(made), encoding="utf-8")
        print_status(f"the page is in {html}")


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Different numbers of at least 1 in rising order; ValueError for anything else."""
    try:
        found = tuple(sorted({int(piece) for piece in text.split(",")}))
    except ValueError as error:
        raise ValueError(f"{option} takes whole numbers separated by commas, not {text!r}") from error
    if found[0] < 1:
        raise ValueError(f"{option} takes numbers of at least 1, not {found[0]}")
    return found
