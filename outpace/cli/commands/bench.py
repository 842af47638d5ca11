"""`outpace bench`: measure the speed of methods on a model and prompts, and recommend a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outpace.cli import options as o
from outpace.cli.failures import FAILED, Debug, exit_with, report_failures
from outpace.cli.output import print_json, print_status

if TYPE_CHECKING:
    from outpace.bench.measure.measurement import Measurement
    from outpace.bench.measure.models import BenchModels, FurtherPeers
    from outpace.bench.report.summary import ResultRow

    # finds the engines that --peer names besides transformers, for a device; ValueError for others. The
    # program benchmarks.peers runs this command with such a function as the context's `obj`.
    FindPeers = Callable[[Sequence[str], str | None], FurtherPeers]

Option = typer.Option
METHODS = "prompt-lookup,speculative-sampling,auto"
TRANSFORMERS = "transformers"  # the peer that runs in this process
SYNTHETIC = "synthetic"  # drafts of a given acceptance, which are no method
PROMPTS = {False: "code", True: "code,arithmetic,edit"}  # default of --prompts, without and with --family


class Selection(StrEnum):
    """The prompts that the summary covers: all, or only those whose plain output does not repeat itself."""

    varied = "varied"
    all = "all"


@report_failures
def bench(
    ctx: typer.Context,
    target: Annotated[
        str, Option(help="The model: zoo:NAME, a folder, or a name on the Hugging Face Hub.")
    ] = "zoo:target",
    methods: Annotated[
        str | None, Option(help="Names separated by commas, with options: prompt-lookup:depth=8,max_ngram=2.")
    ] = None,
    family: Annotated[
        str | None, Option(help="All methods of a family, such as training-free; on all built-in prompts.")
    ] = None,
    exact: o.Exact = False,
    draft: Annotated[str | None, Option(help="The draft model, for methods that need one.")] = None,
    prompts: Annotated[
        str | None,
        Option(help="Prompt sets: code (default), arithmetic, edit, and files (.jsonl, text, ...)."),
    ] = None,
    num_prompts: Annotated[
        int, Option(min=1, help="Maximum number of prompts of each set, spread evenly over it.")
    ] = 10,
    selection: Annotated[
        Selection,
        Option(help="varied: without prompts whose plain output repeats itself; all: with them."),
    ] = Selection.varied,
    temperature: Annotated[str, Option(help="Temperatures, separated by commas.")] = "0,1",
    max_tokens: Annotated[int, Option(min=1, help="Maximum number of new tokens of an answer.")] = 128,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    repetition_penalty: o.RepetitionPenalty = None,
    pareto: Annotated[
        str | None,
        Option(metavar="OPTION=VALUES", help="LOSSY methods with each value, as in epsilon=0.05,0.1."),
    ] = None,
    rounds: Annotated[int, Option(min=1, help="Number of rounds in which everything is measured.")] = 3,
    repeat: Annotated[
        int, Option(min=1, help="Times each prompt is decoded in a round, to measure what methods learn.")
    ] = 1,
    batch: Annotated[int, Option(min=1, help="Prompts decoded together.")] = 1,
    dtype: Annotated[str, Option(help="auto, bfloat16, float16, float32 or float64.")] = "auto",
    device: Annotated[str | None, Option(help="cpu, cuda, ...; default: cuda where there is one.")] = None,
    revision: o.Revision = None,
    trust_remote_code: o.Trust = False,
    allow_pickle: o.AllowPickle = False,
    threads: Annotated[int | None, Option(min=1, help="CPU threads.")] = None,
    compile: o.Compile = False,
    weights: o.Weights = None,
    draft_weights: o.DraftWeights = None,
    kv_cache: o.KvCache = None,
    eager: Annotated[bool, Option(help="With --compile, measure eager forwards too.")] = True,
    seed: Annotated[int, Option(help="Seed of all samples.")] = 0,
    peer: Annotated[
        str | None,
        Option(help="transformers: measure its generate too. Other engines: python -m benchmarks.peers."),
    ] = None,
    ignore_eos: Annotated[bool, Option("--ignore-eos", help="Continue after the end-of-text token.")] = False,
    output: Annotated[
        list[Path] | None,
        Option(
            "--output",
            "-o",
            help="A .json, .md or .html file to write, or a folder for all three; may be repeated.",
        ),
    ] = None,
    html: Annotated[
        Path | None, Option(help="A page to send around: the same as an --output that ends with .html.")
    ] = None,
    recommend: Annotated[
        Path | None, Option(help="Write the recommendation, if there is one, here, for --method @FILE.")
    ] = None,
    json: o.Json = False,
    debug: Debug = False,
) -> None:
    """Measure the speed of methods on your model, prompts and machine."""
    from outpace.core.sampling_params import SamplingParams

    temperatures = _temperatures(temperature)
    given = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "repetition_penalty": repetition_penalty}
    settings = {name: value for name, value in given.items() if value is not None}
    sampling = SamplingParams(max_tokens=max_tokens, **settings)  # raises ValueError for invalid values
    if not (eager or compile):
        raise ValueError("--no-eager leaves nothing to measure: give --compile with it")

    from outpace.recipes import of_family, parse_methods, read_options, split_outside

    names = [methods or "" if methods or family else METHODS, *(of_family(family) if family else [])]
    named = parse_methods(",".join(filter(None, names)))
    for method in named:
        if method.name != SYNTHETIC and not Path(method.name).is_file():
            read_options(method.name)  # an unknown name is refused before anything is imported
    with o.importing():
        from outpace.bench.measure import provenance
    from outpace.bench.measure.knob import Knob
    from outpace.bench.measure.line_up import check_names
    from outpace.bench.measure.models import BenchModels
    from outpace.bench.measure.workload import load_items
    from outpace.bench.report.files import check_writable, expanded
    from outpace.models.threads import busy, load, num_cpus

    before = load()
    if html is not None and html.suffix != ".html":
        raise ValueError(f"--html {html} is no name of a page: give one that ends with .html")
    files = expanded([*(output or []), *([html] if html else [])])
    check_writable([*files, *([recommend] if recommend else [])])
    peers = [each.strip() for each in split_outside(peer or "", ",")]
    if peer is not None and not any(peers):
        raise ValueError(f"--peer names no engine: it takes {TRANSFORMERS}")
    further_peers = _further_peers(ctx.obj, [each for each in peers if each != TRANSFORMERS], device)
    check_names(named)  # before models are loaded
    explicit = {method.label for method in parse_methods(names[0])} if names[0] else set[str]()
    optional = set(names[1:]) - explicit  # a family has methods that need parts of their own
    named, curves = Knob.parse(pareto).spread(named) if pareto else (named, {})
    optional |= {label for label, (name, _) in curves.items() if name in optional}
    items = [
        item
        for source in split_outside(prompts or PROMPTS[family is not None], ",")
        for item in load_items(source, num_prompts)
    ]
    with ExitStack() as stack:
        stack.enter_context(provenance.threads(threads))
        models = BenchModels(
            stack,
            target,
            draft,
            transformers_peer=TRANSFORMERS in peers,
            further_peers=further_peers,
            dtype=dtype,
            device=device,
            revision=revision,
            trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
            compile=compile,
            weights=weights,
            draft_weights=draft_weights,
            kv_cache=kv_cache,
            eager=eager,
            on_message=print_status,
        )
        measurement = models.measurement(
            named,
            items,
            temperatures,
            sampling,
            rounds=rounds,
            repeat=repeat,
            batch=batch,
            seed=seed,
            ignore_eos=ignore_eos,
            selection=selection.value,
            settings=settings,
            curves=curves,
            optional=optional,
            exact=exact,
        )
        for name, reason in measurement.failed.items():
            print_status(f"{name} was left out: {reason}")
        said = set(measurement.failed)
        print_status(f"{len(measurement.cases)} prompts, {measurement.total} runs")
        if busy(before):
            print_status(
                f"outpace: other programs use this machine ({before:.1f} processes for {num_cpus()} CPUs): "
                "nothing is recommended if that goes on"
            )
        _measure(measurement, models)
        _report(measurement, files, recommend, said, json=json)


def _further_peers(find: FindPeers | None, peers: Sequence[str], device: str | None) -> FurtherPeers | None:
    """What starts these peers; None for none. ValueError without `find`."""
    if not peers:
        return None
    if find is None:
        raise ValueError(
            f"there is no peer {peers[0]!r} here: --peer takes {TRANSFORMERS}; OpenVINO GenAI, vLLM and "
            "llama.cpp are measured from a clone, by python -m benchmarks.peers with the same options"
        )
    return find(peers, device)


def _temperatures(text: str) -> list[float]:
    try:
        temperatures = list(dict.fromkeys(float(piece) for piece in text.split(",")))
    except ValueError as error:
        raise ValueError(f"--temperature takes numbers separated by commas, not {text!r}") from error
    if min(temperatures) < 0 or max(temperatures) == float("inf"):
        raise ValueError("a temperature is 0 or a positive number")
    return temperatures


def _measure(measurement: Measurement, models: BenchModels) -> None:
    from outpace.console import progress

    with progress(measurement.total) as advance:
        measurement.measure(
            models.targets,
            after=lambda run: advance(run.contender, 1),
            stage=lambda stage: advance(stage, 0),
        )


def _report(
    measurement: Measurement, files: list[Path], recommend: Path | None, said: set[str], *, json: bool
) -> None:
    """Print the results, then write the files; exit with an error if the measurement or a file is
    incomplete. `said`: names of what was left out, of which the user knows."""
    from outpace.bench.report.files import write_files
    from outpace.bench.report.json_file import finite
    from outpace.bench.report.report import to_json

    rows = measurement.rows()
    if json:
        print_json(finite(to_json(measurement, rows)))
    else:
        _print(measurement, rows, said)
    failures = write_files(measurement, rows, files)
    if recommend and rows and not (measurement.interrupted or measurement.error):
        _write_recommendation(measurement, rows, recommend)
    made = f"{len(measurement.runs)} of {measurement.total} runs"
    written = [str(file) for file in files if file.suffix == ".json"]
    where = f"; they are in {written[0]}" if written and not failures else ""
    for failure in failures:
        print_status(failure)
    if measurement.interrupted:
        exit_with(f"interrupted after {made}{where}", FAILED)
    if measurement.error:
        print_status(f"stopped after {made}{where}")
        raise measurement.error
    if failures:
        raise typer.Exit(FAILED)


def _write_recommendation(measurement: Measurement, rows: list[ResultRow], path: Path) -> None:
    """Write the recommendation and say how it is used, or say why there is none."""
    from outpace.bench.report.json_file import write_json
    from outpace.bench.report.usage import loading

    advice = measurement.recommendation(rows)
    if advice.method is None:
        print_status(f"{path} was not written: {advice.reason}")
        return
    write_json(path, measurement.advice(rows))
    words = ["outpace", "generate", *loading(measurement.settings), "--method", f"@{path}"]
    print_status(f"Use it with: {' '.join(words)}")


def _print(measurement: Measurement, rows: list[ResultRow], said: set[str]) -> None:
    from outpace.bench.report.tables import notes, tables
    from outpace.tables import print_tables

    print_tables([*tables(rows, measurement.selection), *measurement.models()])
    for name, reason in measurement.failed.items():
        if name not in said:
            print_status(f"{name} was left out: {reason}")
    if measurement.interrupted or measurement.error:
        return
    chains = measurement.chains(rows)
    for name, tree in measurement.trees(rows).items():
        shape = f"--parents {','.join(map(str, tree.shape.parents))}" if tree.shape.parents else "no draft"
        line = f"\nBest tree for the acceptance of {name}: {shape}, {tree.speedup:.2f}x (forwards alone)"
        if name in chains:
            depth = len(chains[name].shape.parents)
            line += f"; best chain: {f'--depth {depth}' if depth else 'none'}, {chains[name].speedup:.2f}x"
        typer.echo(line)
    typer.echo("\n".join(["", notes(rows), "", *measurement.answers(rows)]))
