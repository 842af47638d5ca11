"""`outpace bench`: time methods side by side on a model, prompts and a machine, and say which one to use."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outpace.cli import options as o
from outpace.cli.failures import FAILED, Debug, plainly, stop
from outpace.cli.output import say

if TYPE_CHECKING:
    from outpace.bench.measure.measurement import Measurement

Option = typer.Option
METHODS = "prompt-lookup,speculative-sampling"
PROMPTS = {False: "code", True: "code,arithmetic,edit"}  # with a family: where each of its methods helps


@plainly
def bench(
    target: Annotated[
        str, Option(help="The model: zoo:NAME, a folder, or a name on the hub.")
    ] = "zoo:target",
    methods: Annotated[
        str | None, Option(help="Names separated by commas, with options: prompt-lookup:depth=8,max_ngram=2.")
    ] = None,
    family: Annotated[
        str | None, Option(help="Methods of a family, such as training-free; prompts of all three kinds.")
    ] = None,
    draft: Annotated[str | None, Option(help="The small model for methods that want one.")] = None,
    prompts: Annotated[
        str | None,
        Option(help="Of code, arithmetic, edit, and files: jsonl, public benchmarks, text. Default: code."),
    ] = None,
    num_prompts: Annotated[int, Option(min=1, help="Most prompts of each set, spread evenly over it.")] = 10,
    temperature: Annotated[str, Option(help="One or several, separated by commas.")] = "0,1",
    max_tokens: Annotated[int, Option(min=1, help="Most new tokens of an answer.")] = 128,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    repetition_penalty: o.RepetitionPenalty = None,
    rounds: Annotated[int, Option(min=1, help="How often everything is measured.")] = 3,
    passes: Annotated[
        int, Option(min=1, help="How often a round asks every prompt: do methods that learn gain?")
    ] = 1,
    batch: Annotated[int, Option(min=1, help="Prompts decoded together.")] = 1,
    dtype: Annotated[str, Option(help="auto, bfloat16, float16, float32 or float64.")] = "auto",
    device: Annotated[str | None, Option(help="cpu, cuda, ...; default: the best there is.")] = None,
    threads: Annotated[int | None, Option(min=1, help="CPU threads.")] = None,
    compile: o.Compile = False,
    eager: Annotated[bool, Option(help="With --compile, everything also on the models as they are.")] = True,
    seed: Annotated[int, Option(help="Of all samples.")] = 0,
    peer: Annotated[
        str | None, Option(help="Engines beside ours: transformers,openvino,vllm=/path/to/python.")
    ] = None,
    ignore_eos: Annotated[bool, Option("--ignore-eos", help="Write on after the end-of-text token.")] = False,
    json: Annotated[Path | None, Option(help="Write everything that was measured here.")] = None,
    markdown: Annotated[Path | None, Option(help="Write the tables here.")] = None,
    recommend: Annotated[
        Path | None, Option(help="Write the recommendation here, for --method @FILE.")
    ] = None,
    html: Annotated[Path | None, Option(help="Write a page with charts here.")] = None,
    out: Annotated[
        Path | None, Option(help="A folder for all: bench.json, bench.md, bench.html, method.json.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Time methods side by side on your model, prompts and machine."""
    if out:
        json, markdown = json or out / "bench.json", markdown or out / "bench.md"
        html, recommend = html or out / "bench.html", recommend or out / "method.json"
    heats = _temperatures(temperature)
    named_settings = {
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
    }
    settings = {name: value for name, value in named_settings.items() if value is not None}
    _check(settings)
    if not (eager or compile):
        raise ValueError("--no-eager leaves nothing to measure: give --compile with it")

    from outpace.bench.measure import provenance
    from outpace.bench.measure.method_names import parse_methods, split_outside
    from outpace.bench.measure.workload import load_items
    from outpace.bench.peers.environments import find_homes, parse_peers
    from outpace.cli.bench_models import Loaded
    from outpace.recipes import of_family

    peers = parse_peers(peer) if peer else {}
    homes = find_homes(peers, device)
    wanted = [methods or "" if methods or family else METHODS, *(of_family(family) if family else [])]
    named = parse_methods(",".join(filter(None, wanted)))
    items = [
        item
        for source in split_outside(prompts or PROMPTS[family is not None], ",")
        for item in load_items(source, num_prompts)
    ]
    with ExitStack() as stack:
        stack.enter_context(provenance.threads(threads))
        loaded = Loaded(stack, target, draft, "transformers" in peers, homes, dtype, device, compile, eager)
        measurement = loaded.prepare(
            named,
            items,
            heats,
            max_tokens=max_tokens,
            rounds=rounds,
            passes=passes,
            batch=batch,
            seed=seed,
            ignore_eos=ignore_eos,
            settings=settings,
        )
        say(f"{len(measurement.cases)} prompts, {measurement.total} runs")
        _measure(measurement, loaded.targets)
        _report(measurement, json, {markdown: _markdown, html: _html}, recommend)


def _check(settings: dict[str, Any]) -> None:
    """Find out about impossible numbers before a model is loaded."""
    from outpace.core.sampling_params import SamplingParams

    SamplingParams(**settings)


def _temperatures(text: str) -> list[float]:
    try:
        heats = list(dict.fromkeys(float(piece) for piece in text.split(",")))
    except ValueError as error:
        raise ValueError(f"--temperature takes numbers separated by commas, not {text!r}") from error
    if min(heats) < 0 or max(heats) == float("inf"):
        raise ValueError("a temperature is 0 or a positive number")
    return heats


def _measure(measurement: Measurement, targets: dict[tuple[str, str], Any]) -> None:
    from outpace.console import progress

    with progress(measurement.total) as tell:
        measurement.measure(
            targets, after=lambda run: tell(run.contender, 1), stage=lambda what: tell(what, 0)
        )


def _markdown(measurement: Measurement, rows: Any) -> str:
    from outpace.bench.report.report import to_markdown

    return to_markdown(measurement, rows)


def _html(measurement: Measurement, rows: Any) -> str:
    from outpace.bench.report.html import page

    return page(measurement, rows)


def _report(
    measurement: Measurement, json: Path | None, pages: dict[Path | None, Any], recommend: Path | None
) -> None:
    from outpace.bench.report.json_file import write_json
    from outpace.bench.report.report import to_json
    from outpace.bench.report.tables import notes, tables
    from outpace.tables import print_tables

    rows = measurement.rows()
    if json:
        write_json(json, to_json(measurement, rows))
    for path, write in pages.items():
        if path and rows:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(write(measurement, rows), encoding="utf-8")
    print_tables([*tables(rows), *measurement.models()])
    for name, why in measurement.failed.items():
        say(f"{name} was left out: {why}")
    where = f"; what was measured is in {json}" if json else ""
    if measurement.interrupted:
        stop(f"interrupted after {len(measurement.runs)} of {measurement.total} runs{where}", FAILED)
    if measurement.error:
        say(f"stopped after {len(measurement.runs)} of {measurement.total} runs{where}")
        raise measurement.error
    chains = measurement.chains(rows)
    for name, tree in measurement.trees(rows).items():
        shape = f"--parents {','.join(map(str, tree.shape.parents))}" if tree.shape.parents else "no draft"
        line = (
            f"\nBest tree at the acceptance of {name}: {shape}, about {tree.speedup:.2f}x in forwards alone"
        )
        if name in chains:
            depth = len(chains[name].shape.parents)
            line += f"; best chain: {f'--depth {depth}' if depth else 'none'}, {chains[name].speedup:.2f}x"
        typer.echo(line)
    typer.echo("\n".join(["", notes(rows), "", *measurement.answers(rows)]))
    if recommend:
        write_json(recommend, measurement.advice(rows))
        compiled = " --compile" if measurement.settings.get("compile") else ""
        typer.echo(f"Use it with: outpace generate{compiled} --method @{recommend}")
