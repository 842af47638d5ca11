"""The time of a batch whose rows end at very different steps: `python -m benchmarks.makespan --json FILE`.

All rows begin together, as in the rollouts of reinforcement learning. Most answers are short and a few are
long. `tlt` is compared with drafting at any number of rows, with drafting at none, and with its trees at
every number of rows, in interleaved rounds. Texts are those of plain decoding, at temperature 0.
"""

from __future__ import annotations

import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

import outpace
from outpace.bench.measure.bootstrap import median_interval
from outpace.bench.measure.provenance import provenance, threads
from outpace.bench.measure.workload import BUILT_IN, encode, load_items
from outpace.bench.report.json_file import write_json
from outpace.console import progress
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.recipes import resolve_recipe
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.serving.methods import open_methods
from outpace.tables import Table, print_tables

HEAD = "zoo:hass"
OFF = "off"
# name -> method and options; "always" has the trees of small batches at every number of rows
CONTENDERS: dict[str, tuple[str, dict[str, str]]] = {
    OFF: ("autoregressive", {}),
    "always": ("tlt", {"depths": "5", "num_nodes": "8", "first_rows": "1", "most_rows": "1000000"}),
    "tlt": ("tlt", {"depths": "5", "num_nodes": "8,8,4,2"}),
}


@dataclass(frozen=True)
class Makespan:
    """One batch."""

    contender: str
    round: int
    seconds: float
    steps: int
    drafted_steps: int  # in which any row drafted
    tokens: int


def lengths(rows: int, shortest: int, longest: int, seed: int) -> list[int]:
    """Tokens of the answers: between the two, with a density that falls with the square of the length."""
    pick = random.Random(seed)
    return [min(longest, int(shortest / (1 - pick.random() * (1 - shortest / longest)))) for _ in range(rows)]


def main(
    json: Annotated[Path, typer.Option(help="File to write.")],
    target: Annotated[str, typer.Option(help="The model.")] = "zoo:target",
    head: Annotated[str, typer.Option(help="A head of EAGLE's kind.")] = HEAD,
    rows: Annotated[int, typer.Option(min=2, help="Prompts of a batch.")] = 48,
    shortest: Annotated[int, typer.Option(min=1, help="Tokens of the shortest answer.")] = 12,
    longest: Annotated[int, typer.Option(min=2, help="Most tokens of an answer.")] = 400,
    most_rows: Annotated[int, typer.Option(min=1, help="Rows with which tlt still drafts.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Batches of each contender.")] = 5,
    compile: Annotated[bool, typer.Option(help="Compile models.")] = True,
    number: Annotated[int, typer.Option("--threads", min=1, help="CPU threads.")] = 2,
) -> None:
    """Time batches with a long tail."""
    found: list[Makespan] = []
    with threads(number):
        model = outpace.load(target, dtype="bfloat16", compile=compile)
        items = [item for source in BUILT_IN for item in load_items(source)]
        prompts = [encode(model.tokenizer, item) for item in items]
        parts = {}
        for name, (method, options) in CONTENDERS.items():
            given = {"most_rows": str(most_rows), "head": head, **options} if options else {}
            [parts[name]] = open_methods(model, resolve_recipe(method), given).values()
        with progress((rounds + 1) * len(parts)) as advance:
            for turn in range(-1, rounds):  # the first round warms up
                chosen = [prompts[(turn + row) % len(prompts)] for row in range(rows)]
                sampling = [
                    SamplingParams(max_tokens=length, seed=row)
                    for row, length in enumerate(lengths(rows, shortest, longest, turn))
                ]
                order = list(parts)
                random.Random(turn).shuffle(order)
                for name in order:
                    begin, steps, drafted, tokens = time.perf_counter(), 0, 0, 0
                    for step in Session(parts[name], chosen, sampling, LazyTargetProbs).steps():
                        steps += 1
                        drafted += len(step.draft.tree) > len(step.ctx.slots)
                        tokens += sum(map(len, step.generated))
                    seconds = time.perf_counter() - begin
                    if turn >= 0:
                        found.append(Makespan(name, turn, seconds, steps, drafted, tokens))
                    advance(f"{name}, batch {turn + 1}", 1)
    times = {(each.contender, each.round): each.seconds for each in found}
    ratios = [
        {
            "contender": name,
            "over": over,
            "ratio": asdict(
                median_interval([[times[over, turn] / times[name, turn]] for turn in range(rounds)])
            ),
        }
        for name, over in (("tlt", OFF), ("tlt", "always"), ("always", OFF))
    ]
    rows_of = {name: [each for each in found if each.contender == name] for name in parts}
    print_tables(
        [
            Table(
                "Batches with a long tail, medians",
                ("contender", "seconds", "steps", "steps with drafts"),
                tuple(
                    (
                        name,
                        f"{median(each.seconds for each in own):.2f}",
                        f"{median(each.steps for each in own):.0f}",
                        f"{median(each.drafted_steps for each in own):.0f}",
                    )
                    for name, own in rows_of.items()
                ),
            )
        ]
    )
    for each in ratios:
        typer.echo(f"{each['contender']} over {each['over']}: {each['ratio']['median']:.2f} times as fast")
    json.parent.mkdir(parents=True, exist_ok=True)
    settings = {"rows": rows, "shortest": shortest, "longest": longest, "most_rows": most_rows, "head": head}
    results = [{**asdict(each), "name": each.contender} for each in found]
    write_json(
        json,
        {
            "schema": "outpace-makespan/1",
            "provenance": provenance(num_threads=number),
            "settings": {**settings, "target": target, "compile": compile},
            "results": results,
            "ratios": ratios,
        },
    )


if __name__ == "__main__":
    typer.run(main)
