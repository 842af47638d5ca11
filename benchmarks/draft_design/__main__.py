"""Which draft model, and how many draft tokens, by measured times and acceptance: `python -m
benchmarks.draft_design`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.draft_design import measurements as m
from benchmarks.draft_design.design import Design, run_design
from benchmarks.draft_design.measurements import Candidate
from benchmarks.draft_design.report import COLUMNS, cells, note, report
from outpace.api.model import load
from outpace.api.opener import ModelOpener
from outpace.api.settings import end_tokens
from outpace.bench.measure import provenance
from outpace.bench.measure.workload import encode, load_items
from outpace.bench.report.json_file import write_json
from outpace.cli.failures import report_failures
from outpace.core.sampling_params import SamplingParams
from outpace.models.names import usual_draft
from outpace.recipes import split_outside
from outpace.tables import Table, print_tables

Option = typer.Option


@report_failures
def main(
    target: Annotated[str, Option(help="The model: zoo:NAME or a folder.")] = "zoo:target",
    draft: Annotated[
        list[str] | None,
        Option(help="A draft model, whose acceptance is measured; may be repeated. Default: the usual one."),
    ] = None,
    layers: Annotated[
        str, Option(help="Numbers of layers of the shapes to time, separated by commas.")
    ] = "1,2,4",
    widths: Annotated[
        str | None, Option(help="Sizes of their hidden states; default: the draft model's, or the target's.")
    ] = None,
    heads: Annotated[
        str | None,
        Option(help="Numbers of their attention heads; default: heads as wide as the draft model's."),
    ] = None,
    lengths: Annotated[str, Option(help="Numbers of draft tokens per step.")] = "1,2,3,4,6,8",
    batch: Annotated[str, Option(help="Numbers of rows that are decoded together.")] = "1",
    temperature: Annotated[float, Option(min=0, help="Temperature of the target and the drafts.")] = 0.0,
    max_tokens: Annotated[int, Option(min=1, help="Maximum number of new tokens of an answer.")] = 64,
    prompts: Annotated[str, Option(help="Prompt sets or files.")] = "code",
    num_prompts: Annotated[
        int, Option(min=1, help="Maximum number of prompts of each set, spread evenly over it.")
    ] = 8,
    repeats: Annotated[int, Option(min=1, help="Timed repetitions of all forwards.")] = 7,
    dtype: Annotated[str, Option(help="dtype of the models.")] = "auto",
    device: Annotated[str | None, Option(help="cpu, cuda, ...; default: cuda where there is one.")] = None,
    compile_: Annotated[bool, Option("--compile", help="Compile the models.")] = False,
    threads: Annotated[int | None, Option(min=1, help="CPU threads.")] = None,
    json: Annotated[Path | None, Option(help="File to write.")] = None,
) -> None:
    """Predict the speed of draft models, also of shapes that nobody has trained, and name the best."""
    grid = {"layers": layers, "widths": widths, "heads": heads, "lengths": lengths, "batch": batch}
    numbers = {name: None if text is None else whole_numbers(name, text) for name, text in grid.items()}
    given = {"temperature": temperature, "max_tokens": max_tokens, "prompts": prompts}
    how = {"dtype": dtype, "device": device, "compile": compile_}
    with provenance.threads(threads):
        design = _measure(target, draft, numbers, given, num_prompts, repeats, how)
        _print(design)
        if json:
            write_json(json, report(design, provenance.provenance(design.settings["device"])))


def whole_numbers(name: str, text: str) -> list[int]:
    """Different numbers of at least 1 in rising order; ValueError for anything else."""
    try:
        found = sorted({int(piece) for piece in text.split(",")})
    except ValueError as error:
        raise ValueError(f"--{name} takes whole numbers separated by commas, not {text!r}") from error
    if found[0] < 1:
        raise ValueError(f"--{name} takes numbers of at least 1, not {found[0]}")
    return found


def _measure(
    target: str,
    drafts: list[str] | None,
    numbers: dict[str, list[int] | None],
    given: dict[str, Any],
    num_prompts: int,
    repeats: int,
    how: dict[str, Any],
) -> Design:
    """Load or make all models, measure them and predict."""
    lengths, batches = numbers["lengths"] or [], numbers["batch"] or []
    items = [
        item for source in split_outside(given["prompts"], ",") for item in load_items(source, num_prompts)
    ]
    model = load(target, **how)
    opener, names = ModelOpener(model), drafts or [name for name in [usual_draft(target)] if name]
    candidates: list[Candidate] = []
    for name in names:
        opened = opener.draft(name)
        candidates.append(m.Candidate(name, m.Shape.of(opened.model), opened, trained=True))
    base = candidates[0].model if candidates else model.target
    own = m.Shape.of(base.model)
    for shape in [
        m.Shape(layers, width, heads)
        for layers in numbers["layers"] or [own.num_layers]
        for width in numbers["widths"] or [own.width]
        for heads in numbers["heads"] or [max(1, width * own.num_heads // own.width)]
    ]:
        candidates.append(m.random_candidate(base, shape, compile=how["compile"]))
    longest, most = max(lengths), min(each for each in (model.max_length, 1 << 30) if each is not None)
    needed = given["max_tokens"] + longest + 1
    texts = [tokens for item in items if 0 < len(tokens := encode(model.tokenizer, item)) <= most - needed]
    if not texts:
        raise ValueError(f"every prompt is too long for {needed} new tokens: lower --max-tokens")
    sampling = SamplingParams(
        temperature=given["temperature"],
        max_tokens=given["max_tokens"],
        stop=end_tokens(model.defaults, model.tokenizer),
    )
    context = m.context_length(texts, sampling.max_tokens)
    settings = {
        "target": target,
        "reference": candidates[0].name,
        "lengths": lengths,
        "batch": batches,
        **given,
        "num_prompts": len(texts),
        "context": context,
        "device": str(model.target.device),
        "dtype": str(next(model.target.model.parameters()).dtype).removeprefix("torch."),
        "compile": how["compile"],
    }
    return Design(
        *run_design(
            model.target,
            candidates,
            texts,
            sampling,
            lengths=lengths,
            batches=batches,
            context=context,
            repeats=repeats,
        ),
        settings,
    )


def _print(design: Design) -> None:
    title = f"draft models for {design.settings['target']}"
    print_tables([Table(title, COLUMNS, tuple(map(cells, design.rows)), note(design))])
    for size, speed in design.plain.items():
        row = design.best(size)
        if row is None or row.best is None:
            line = "no draft model that was given is predicted to be faster than plain decoding"
        else:
            line = (
                f"best is {row.candidate.name} with drafts of length {row.best.length}, predicted "
                f"{row.best.speed:.1f} tokens/s, {row.best.speed / speed:.2f} times plain decoding"
            )
        typer.echo(f"Batch {size}: {line} ({speed:.1f} tokens/s)")
    for check in design.checks:
        typer.echo(
            f"Held out, batch {check.rows}: {check.draft} with drafts of length {check.length}: predicted "
            f"{1000 * check.predicted:.2f} ms per step, measured {1000 * check.measured:.2f} ms "
            f"({check.error:+.0%})"
        )


if __name__ == "__main__":
    typer.run(main)
