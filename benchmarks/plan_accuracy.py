"""Whether `outpace plan` is right: `python -m benchmarks.plan_accuracy`.

Of each prompt set, one half is what a plan is made from, as a user would make it: acceptance and, at two
batch sizes, times. The other half is then decoded at several batch sizes by plain decoding and by all
methods, taking turns. The batch is kept full, as in a server with a queue: a request that ends is followed by
the next one. Speeds are those of steps with all rows in which nothing of a prompt is read. No measured cell
is used for its own prediction.

Each cell is predicted twice: from the acceptance on the other half of the prompts, and from that on the same
prompts, which leaves the errors of the cost model alone.
"""

from __future__ import annotations

import json as jsons
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from torch import Tensor

from outpace.api.model import Model, load
from outpace.api.opener import ModelOpener
from outpace.api.settings import end_tokens
from outpace.bench.measure.means import Mean, mean_interval
from outpace.bench.measure.metrics import reads_prompts
from outpace.bench.measure.provenance import provenance, threads
from outpace.bench.measure.workload import encode, load_items
from outpace.bench.report.json_file import write_json
from outpace.cli.commands.plan import whole_numbers
from outpace.console import progress
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.cost.step_time import Choice, relative_error
from outpace.drafters.no_draft import NoDraft
from outpace.engine.engine import Engine
from outpace.models.names import usual_draft
from outpace.plan import measuring
from outpace.plan.make import Asked, plan_with
from outpace.plan.measuring import BuiltMethod
from outpace.plan.plan import Plan
from outpace.plan.prediction import PlannedMethod, predict
from outpace.recipes import parse_methods
from outpace.tables import Table, print_tables
from outpace.verifiers.match import Match

METHODS = "speculative-sampling,eagle:tree=chain,eagle,medusa,mcsd,prompt-lookup"
LENGTHS = (2, 4, 8)  # of chains, which can have any
IN_A_ROW = 6  # steps of a method in its turn, of which the first is not timed
WITHIN = 0.2  # largest error of a prediction that counts as right
LONGEST = 8
PLAIN = "plain"

Option = typer.Option


@dataclass
class Speed:
    """Steps of one method with all rows. Those with as many draft tokens count by their median time, so that
    a step in which another program took the CPU does not."""

    tokens: int = 0
    seconds: dict[int, list[float]] = field(default_factory=dict[int, "list[float]"])  # by draft tokens

    @property
    def steps(self) -> int:
        return sum(map(len, self.seconds.values()))

    @property
    def total(self) -> float:
        """Seconds of all steps."""
        return sum(len(each) * median(each) for each in self.seconds.values())

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.total if self.total else 0.0

    @property
    def milliseconds(self) -> float:
        """Of a step, on average."""
        return 1000 * self.total / max(1, self.steps)


@dataclass(frozen=True)
class Cell:
    """A predicted and a measured speedup over plain decoding."""

    workload: str
    method: str
    length: int  # draft tokens of a chain, levels of a tree
    batch: int
    timed: bool  # whether steps of this batch size were timed for the plan, with other texts
    predicted: float
    from_same_prompts: float  # predicted from the acceptance on the prompts of the measurement
    measured: float
    steps: int  # measured
    tokens_per_step: float  # measured, of a row
    milliseconds_per_step: float  # measured
    predicted_tokens_per_step: float
    predicted_milliseconds_per_step: float
    plain_milliseconds_per_step: float  # measured
    predicted_plain_milliseconds_per_step: float
    error: float = field(init=False)
    error_from_same_prompts: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", relative_error(self.predicted, self.measured))
        object.__setattr__(
            self, "error_from_same_prompts", relative_error(self.from_same_prompts, self.measured)
        )


def decoding(
    parts: Parts, prompts: Sequence[Tensor], rows: int, sampling: SamplingParams, speed: Speed
) -> Iterator[int]:
    """Decode all prompts with a full batch; yields once a step, and adds the steps after the first of a turn
    to `speed`. Sent values tell whether a turn begins."""
    waiting = list(enumerate(prompts))
    size = rows, max(map(len, prompts)) + sampling.max_tokens
    engine = Engine[int](parts, size=size)

    def join() -> None:
        number, prompt = waiting.pop(0)
        engine.add(number, prompt, replace(sampling, seed=number))

    for _ in range(rows):
        join()
    at = 0
    while (step := engine.step()) is not None:
        if len(step.ctx.slots) == rows and not reads_prompts(step) and at % IN_A_ROW:
            speed.tokens += sum(map(len, step.generated))
            drafted = len(step.draft.tree) - rows
            seconds = sum(float(each) for part, each in step.seconds.items() if part != "caller")
            speed.seconds.setdefault(drafted, []).append(seconds)
        for _ in engine.new_tokens(step):
            pass
        if step.finished and not waiting:
            break
        for _ in step.finished:
            if waiting:
                join()
        at += 1
        yield at
    engine.close()


def speeds(
    methods: Mapping[str, Parts], prompts: Sequence[Tensor], rows: int, sampling: SamplingParams
) -> dict[str, Speed]:
    """The speeds of all methods, which take turns of a few steps."""
    found = {name: Speed() for name in methods}
    running = {name: decoding(parts, prompts, rows, sampling, found[name]) for name, parts in methods.items()}
    while running:
        for name, steps in list(running.items()):
            for _ in range(IN_A_ROW):
                if next(steps, None) is None:
                    del running[name]
                    break
    return found


def cells(
    model: Model,
    build: Callable[[], Sequence[BuiltMethod]],
    asked: Asked,
    workload: str,
    batches: Sequence[int],
    number: int,
) -> list[Cell]:
    """Plan with one half of the prompts of a set, measure the other half."""
    items = load_items(workload, 2 * number)
    folder = Path("out") / "plan-accuracy"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{workload}.jsonl"
    write_prompts(file, items[::2])
    plan = plan_with(model, replace(asked, prompts=str(file), num_prompts=number))
    texts = [encode(model.tokenizer, item) for item in items[1::2]]
    stop = end_tokens(model.defaults, model.tokenizer)
    sampling = SamplingParams(asked.temperature, max_tokens=asked.max_tokens, stop=stop)
    planned = {each.name: each for each in plan.methods}
    same: dict[str, PlannedMethod] = {}
    parts = {(PLAIN, 0): Parts(model.target, NoDraft(), Match(), Fixed(0))}
    # a drafter serves one session at a time, and all methods and lengths are decoded in turn
    copies = {length: {each.name: each.parts for each in build()} for length in LENGTHS}
    for method in build():
        found = measuring.measure_acceptance(method, texts, sampling, asked.longest)
        same[method.name] = replace(planned[method.name], drafts=found.drafts, ranks=())
        lengths = [each for each in LENGTHS if each in found.drafts.lengths]
        if found.drafts.can_be_cut:
            parts |= {
                (method.name, length): replace(copies[length][method.name], controller=Fixed(length))
                for length in lengths
            }
        else:
            parts[method.name, found.drafts.longest] = method.parts
    result: list[Cell] = []
    for rows in batches:
        measured = speeds({repr(name): each for name, each in parts.items()}, texts, rows, sampling)
        plain = measured[repr((PLAIN, 0))]
        for name, length in parts:
            if name == PLAIN:
                continue
            speed = measured[repr((name, length))]
            choice, plain_seconds = predicted(plan, planned[name], rows, length)
            again, _ = predicted(plan, same[name], rows, length)
            result.append(
                Cell(
                    workload,
                    name,
                    length,
                    rows,
                    rows in (1, max(plan.batches)),
                    choice.speed * plain_seconds,
                    again.speed * plain_seconds,
                    speed.tokens_per_second / plain.tokens_per_second,
                    speed.steps,
                    speed.tokens / (rows * max(1, speed.steps)),
                    speed.milliseconds,
                    choice.tokens,
                    1000 * choice.seconds,
                    plain.milliseconds,
                    1000 * plain_seconds,
                )
            )
    return result


def write_prompts(file: Path, items: Sequence[Any]) -> None:
    """Write prompts as `load_items` reads them."""

    lines = [
        {"id": item.id, "turns": item.turns} if item.chat else {"id": item.id, "prompt": item.turns[0]}
        for item in items
    ]
    file.write_text("".join(jsons.dumps(line) + "\n" for line in lines), encoding="utf-8")


def predicted(plan: Plan, method: PlannedMethod, rows: int, length: int) -> tuple[Choice, float]:
    """What is predicted with drafts of this length, and the seconds of a step of plain decoding; for a method
    whose drafts have another one, as a tree that is shallower with some prompts, with its own."""
    found = predict(plan.target, plan.plain, replace(method, ranks=()), rows, plan.context)
    choice = next((each for each in found.by_length if each.length == length), found.by_length[-1])
    return choice, found.plain_seconds


def share(of: Sequence[Cell], right: Sequence[bool]) -> Mean:
    """The share of cells that are right, with its interval: those of one method and set of prompts go
    together."""
    groups: dict[tuple[str, str], list[float]] = {}
    for cell, is_right in zip(of, right, strict=True):
        groups.setdefault((cell.workload, cell.method), []).append(float(is_right))
    return mean_interval(list(groups.values()))


def shares(found: Sequence[Cell]) -> list[dict[str, Any]]:
    """Shares of cells whose prediction is right, of all and by batch size and method."""
    groups: dict[str, list[Cell]] = {"all": list(found)}
    groups["batch sizes that were not timed"] = [each for each in found if not each.timed]
    for each in found:
        groups.setdefault(f"batch {each.batch}", []).append(each)
        groups.setdefault(each.method, []).append(each)
    return [
        {
            "cells_of": name,
            "cells": len(group),
            "within": asdict(share(group, [abs(each.error) <= WITHIN for each in group])),
            "within_from_same_prompts": asdict(
                share(group, [abs(each.error_from_same_prompts) <= WITHIN for each in group])
            ),
            "largest_error": max((each.error for each in group), key=abs),
            "right_side": sum((each.predicted > 1) == (each.measured > 1) for each in group) / len(group),
        }
        for name, group in groups.items()
        if group
    ]


def to_tables(found: Sequence[Cell], rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    columns = (
        "prompts",
        "method",
        "drafts",
        "batch",
        "predicted",
        "from the same prompts",
        "measured",
        "error",
    )
    lines = tuple(
        (
            each.workload,
            each.method,
            str(each.length),
            str(each.batch),
            f"{each.predicted:.2f}",
            f"{each.from_same_prompts:.2f}",
            f"{each.measured:.2f}",
            f"{each.error:+.0%}",
        )
        for each in found
    )
    summary = tuple(
        (
            str(row["cells_of"]),
            str(row["cells"]),
            f"{row['within']['mean']:.0%}",
            f"{row['within_from_same_prompts']['mean']:.0%}",
            f"{row['largest_error']:+.0%}",
            f"{row['right_side']:.0%}",
        )
        for row in rows
    )
    heads = ("cells", "number", "within 20 %", "from the same prompts", "largest error", "right side of 1")
    return [Table("speedups", columns, lines), Table("predictions", heads, summary)]


def main(
    target: Annotated[str, Option(help="The model: zoo:NAME or a folder.")] = "zoo:target",
    draft: Annotated[str | None, Option(help="The draft model. Default: the usual one.")] = None,
    methods: Annotated[str, Option(help="Methods with fixed draft lengths.")] = METHODS,
    batch: Annotated[
        str, Option(help="Batch sizes to measure; the plan is timed with 1 and the largest.")
    ] = "1,2,4,6",
    prompts: Annotated[str, Option(help="Prompt sets.")] = "code,arithmetic,edit",
    num_prompts: Annotated[int, Option(min=2, help="Prompts of each half of a set.")] = 12,
    max_tokens: Annotated[int, Option(min=20, help="Maximum number of new tokens of an answer.")] = 64,
    temperature: Annotated[float, Option(min=0, help="Temperature.")] = 0.0,
    dtype: Annotated[str, Option(help="dtype of the models.")] = "auto",
    compile_: Annotated[bool, Option("--compile", help="Compile the models.")] = False,
    number: Annotated[int | None, Option("--threads", min=1, help="CPU threads.")] = None,
    json: Annotated[Path | None, Option(help="File to write.")] = None,
) -> None:
    """Predict speedups with one half of the prompts and measure them with the other."""
    batches = whole_numbers("--batch", batch)
    asked = Asked(
        target,
        draft,
        methods=methods,
        batches=(1, max(batches)),
        longest=LONGEST,
        max_tokens=max_tokens,
        temperature=temperature,
        dtype=dtype,
    )
    found: list[Cell] = []
    with threads(number):
        source = provenance("cpu")
        model = load(target, dtype=dtype, compile=compile_)
        named = {method.label: method for method in parse_methods(methods)}
        opener, usual = ModelOpener(model), draft or usual_draft(target)

        def build() -> Sequence[BuiltMethod]:
            return measuring.build(named, model.target, usual, opener)

        sets = prompts.split(",")
        with progress(len(sets), "measuring") as advance:
            for workload in sets:
                found += cells(model, build, asked, workload, batches, num_prompts)
                advance(workload, 1)
    rows = shares(found)
    print_tables(to_tables(found, rows))
    if json:
        settings = {"target": target, "draft": draft, "temperature": temperature, "compile": compile_}
        write_json(
            json,
            {
                "schema": "outpace-plan-accuracy/1",
                "provenance": source,
                "settings": {**settings, "max_tokens": max_tokens, "num_prompts": num_prompts},
                "ratios": rows,
                "results": [asdict(each) for each in found],
            },
        )


if __name__ == "__main__":
    typer.run(main)
