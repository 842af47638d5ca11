"""Speed of compiled against eager forwards: `python -m benchmarks.forwards --target zoo:target`.

Milliseconds per forward by number of tokens, and tokens per second of methods, each with eager and with
compiled models, interleaved.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from outpace.bench.measure.bootstrap import median_interval
from outpace.bench.measure.contender import COMPILED, EAGER, MethodContender
from outpace.bench.measure.forward_cost import Timings, measure_forwards
from outpace.bench.measure.ideal import DRAFT, TARGET
from outpace.bench.measure.line_up import compiled_and_eager, method_contenders
from outpace.bench.measure.provenance import provenance, threads
from outpace.bench.measure.run import EncodedPrompt, Run, batches, encode_prompts, interleave, trials, warm_up
from outpace.bench.measure.workload import load_items
from outpace.bench.report.json_file import write_json
from outpace.console import progress
from outpace.core.contracts import Target
from outpace.core.sampling_params import SamplingParams
from outpace.models.hf.target import HFTarget, load
from outpace.models.names import resolve, usual_draft
from outpace.recipes import parse_methods
from outpace.recipes._option_kinds import FunctionOpener
from outpace.tables import Table, markdown, print_tables

SCHEMA = "outpace-forwards/1"
METHODS = "speculative-sampling,mcsd,prompt-lookup"
MODES = {EAGER: "as it is", COMPILED: "compiled"}
Models = Mapping[tuple[str, str], HFTarget]  # (TARGET or DRAFT, mode) -> model
Clock = Callable[[], float]


def opened(names: Mapping[str, str], dtype: str) -> tuple[Models, Any]:
    """(TARGET or DRAFT, mode) -> model, in both modes on the same weights, and the target's tokenizer.
    ValueError if a model cannot be compiled."""
    found: dict[tuple[str, str], HFTarget] = {}
    tokenizers: list[Any] = []
    for kind, name in names.items():
        made, tokenizer = load(resolve(name), dtype=dtype, device="cpu", compile=True)
        found[kind, COMPILED] = made
        if made.compiled is None:
            raise ValueError(
                f"{name} cannot be compiled, so there is nothing to compare: choose another model"
            )
        found[kind, EAGER] = HFTarget(made.model)
        tokenizers.append(tokenizer)
    return found, tokenizers[0]


def line_up(models: Models, methods: str, draft: str | None, clock: Clock) -> list[MethodContender]:
    """Contenders: plain decoding and these methods, each compiled and then eager."""

    def others(mode: str) -> FunctionOpener:
        def open_model(value: Any) -> Target:
            if value != draft:
                raise ValueError(f"all methods have one draft here: name {value} with --draft")
            return models[DRAFT, mode]

        return FunctionOpener(open_model)

    wanted = parse_methods(methods)
    compiled, eager = (
        method_contenders(wanted, models[TARGET, m], draft, others(m))[0] for m in (COMPILED, EAGER)
    )
    return [replace(engine, clock=clock) for engine in compiled_and_eager(compiled, eager)]


def decode(
    line: Sequence[MethodContender], cases: Sequence[EncodedPrompt], sampling: SamplingParams, rounds: int
) -> list[Run]:
    """The runs of all contenders on every prompt in every round, interleaved, after a warm-up."""
    planned = list(trials(batches(cases, 1), [sampling.temperature], rounds))
    with progress(len(planned) * len(line)) as advance:
        for engine in line:
            advance(f"warming up {engine.name}", 0)
            warm_up(engine, planned[0], sampling, [sampling.temperature])
        return interleave(line, planned, sampling, after=lambda run: advance(run.contender, 1))


def forward_rows(timings: Mapping[tuple[str, str], Timings]) -> list[dict[str, Any]]:
    """Rows of median milliseconds by model, mode and number of tokens, after a forward of the same size and
    after one of another size."""
    return [
        {
            "model": kind,
            "mode": mode,
            "tokens": size,
            "milliseconds": 1000 * median(seconds),
            "after_another_size": 1000 * median(timings[kind, mode].changed[size]),
        }
        for (kind, mode), each in timings.items()
        for size, seconds in each.again.items()
    ]


def speed_rows(line: Sequence[MethodContender], runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Rows of median tokens per second by method and mode, prefill included."""
    found: list[dict[str, Any]] = []
    for engine in line:
        speeds: dict[int, list[float]] = {}
        for run in runs:
            if run.contender == engine.name:
                speeds.setdefault(run.trial.index, []).append(run.tokens_per_second)
        method = engine.name.removesuffix(f" ({EAGER})")
        found.append(
            {"method": method, "mode": engine.mode, **median_interval(list(speeds.values())).to_json()}
        )
    return found


def tables(data: Mapping[str, Any]) -> list[Table]:
    """The tables for a result file of this program."""
    rows, speeds, settings = data["milliseconds"], data["tokens_per_second"], data["settings"]
    unit = " of CPU time" if settings["cpu_time"] else ""
    sizes = list(dict.fromkeys(row["tokens"] for row in rows))
    lines: list[tuple[str, ...]] = []
    for model in dict.fromkeys(row["model"] for row in rows):
        for mode, words in MODES.items():
            here = {row["tokens"]: row for row in rows if (row["model"], row["mode"]) == (model, mode)}
            for field, when in (("milliseconds", ""), ("after_another_size", ", after another size")):
                lines.append((f"{model}, {words}{when}", *(f"{here[size][field]:.2f}" for size in sizes)))
    title = f"Forward time by number of tokens, {settings['length']} being read: milliseconds{unit}"
    by_name = {(row["method"], row["mode"]): row["median"] for row in speeds}
    methods = dict.fromkeys(row["method"] for row in speeds)
    rates = tuple((name, *(f"{by_name[name, mode]:.1f}" for mode in MODES)) for name in methods)
    return [
        Table(title, ("model", *map(str, sizes)), tuple(lines)),
        Table(
            f"Tokens per second{unit}, temperature {settings['temperature']:g}",
            ("method", *MODES.values()),
            rates,
        ),
    ]


def sizes(text: str) -> list[int]:
    """Parse numbers of tokens separated by commas; ValueError if one is below 1."""
    found = [int(size) for size in text.split(",")]
    if min(found) < 1:
        raise ValueError("a forward reads at least one token")
    return found


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forwards", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--draft", help="default: what belongs to the target, for models of the package")
    parser.add_argument("--methods", default=METHODS, help="besides plain decoding")
    parser.add_argument("--prompts", default="code")
    parser.add_argument("--num-prompts", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--length", type=int, default=256, help="tokens read before a forward that is timed")
    parser.add_argument("--sizes", type=sizes, default="1,2,4,5,8,16,32", help="tokens of a forward")
    parser.add_argument("--repeats", type=int, default=7, help="of every size")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all forwards")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--cpu-time", action="store_true", help="for a machine that is busy: CPU time of this process"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    return parser.parse_args(arguments)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Make all measurements; returns the contents of the result file."""
    clock = process_time if given.cpu_time else perf_counter
    draft = given.draft or usual_draft(given.target)
    models, tokenizer = opened({TARGET: given.target, **({DRAFT: draft} if draft else {})}, given.dtype)
    target = models[TARGET, COMPILED]
    line = line_up(models, given.methods, draft, clock)
    end = getattr(tokenizer, "eos_token_id", None)
    sampling = SamplingParams(
        given.temperature, max_tokens=given.max_tokens, stop=() if end is None else (int(end),)
    )
    items = load_items(given.prompts, given.num_prompts)
    cases, _ = encode_prompts(items, tokenizer, line[0], sampling, max_length=target.max_length)
    if not cases:
        raise ValueError(f"every prompt is too long for {given.max_tokens} new tokens: lower --max-tokens")
    how: dict[str, Any] = {
        "length": given.length,
        "repeats": given.repeats,
        "most_seconds": given.seconds,
    }
    with progress(1) as advance:
        advance("measuring forwards", 0)
        timings = measure_forwards(models, sizes=given.sizes, clock=clock, **how)
    speeds = speed_rows(line, decode(line, cases, sampling, given.rounds))
    seconds = {kind: each.compiled.seconds for (kind, _), each in models.items() if each.compiled}
    known = {**provenance(), "dtype": str(target.model.dtype).removeprefix("torch.")}
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()}
    return {
        "schema": SCHEMA,
        "provenance": known,
        "settings": settings,
        "compile_seconds": seconds,
        "milliseconds": forward_rows(timings),
        "tokens_per_second": speeds,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    given = options(arguments)
    try:
        with threads(given.threads):
            data = measure(given)
    # a missing model, or a method without its draft model
    except (ValueError, ModuleNotFoundError) as error:
        print(f"forwards: {error}", file=sys.stderr)
        return 2
    print_tables(tables(data))
    if given.json:
        write_json(given.json, data)
    if given.markdown:
        given.markdown.write_text(
            "\n\n".join(markdown(table, 2) for table in tables(data)) + "\n", encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
