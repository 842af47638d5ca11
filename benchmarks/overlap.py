"""Drafting while the target works, on two devices by a virtual clock: `python -m benchmarks.overlap`.

Drafter and target work in turn here, with nothing else on the machine. The virtual clock takes of each step
the longer of the two in place of their sum (`outpace.cost.overlap`). Beside it stands what the cost model
predicts from the times of the forwards and the rate of accepted tokens, and speculative sampling with the
same draft model. What two threads of one CPU really give is measured by `outpace bench`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import outpace
from outpace.api.model import Model
from outpace.bench.measure.bootstrap import Interval, median_interval
from outpace.bench.measure.provenance import provenance
from outpace.bench.measure.workload import encode, load_items
from outpace.bench.report.json_file import write_json
from outpace.console import progress
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Parts, Plan, Step
from outpace.core.sampling_params import SamplingParams
from outpace.cost.overlap import seconds_on_two_devices, tokens_per_round
from outpace.drafters.compose.combined import Combined
from outpace.engine.engine import Engine
from outpace.recipes import get
from outpace.tables import Table, print_tables

SEQUENTIAL = "speculative-sampling"


class Counted(Combined):
    """Another drafter, whose draft tokens are counted."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self._drafter, self.tokens = drafter, 0

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        draft = self._drafter.propose(ctx, plan)
        self.tokens += len(draft.tree) - len(ctx.slots)
        return draft


@dataclass
class Run:
    """What one method did after one prompt; times in seconds, of steps that generate tokens."""

    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    tested: int = 0  # draft tokens that were accepted or rejected
    ends: int = 0  # steps in which the first token after an accepted draft was tested
    hits: int = 0  # and accepted, so that the next step has a draft to read
    one_device: float = 0.0
    two_devices: float = 0.0
    score: list[float] = field(default_factory=list[float])  # of the target's forwards over drafts
    draft: list[float] = field(default_factory=list[float])  # of drafting
    rest: list[float] = field(default_factory=list[float])  # of a step's other parts

    def add(self, step: Step) -> None:
        nodes, new = len(step.draft.tree) - 1, len(step.generated[0])
        self.tokens, self.steps = self.tokens + new, self.steps + 1
        self.accepted += new - 1
        self.tested += min(new, nodes)
        self.hits += nodes > 0
        self.ends += new > nodes
        parts = {part: taken for part, taken in step.seconds.items() if part != "caller"}
        self.one_device += sum(parts.values())
        self.two_devices += seconds_on_two_devices(parts)
        if nodes:
            self.score.append(parts["score"])
        if step.draft.forwards:
            self.draft.append(parts["draft"])
        self.rest.append(sum(parts.values()) - parts["score"] - parts["draft"])

    @property
    def predicted(self) -> float:
        """Seconds per token on two devices by the cost model."""
        rate, depth = min(self.accepted / max(1, self.tested), 0.999), round(self.drafted / len(self.draft))
        step = max(median(self.score), median(self.draft)) + median(self.rest)
        return step / tokens_per_round(rate, depth, first=min(1.0, self.hits / max(1, self.ends)))


def decode(parts: Parts, prompt: Tensor, sampling: SamplingParams) -> Run:
    """Decode after one prompt; steps that read the prompt do not count."""
    counted, run = Counted(parts.drafter), Run()
    engine = Engine.of(replace(parts, drafter=counted), [prompt], [sampling])
    first = True
    for step in engine.steps():
        if step.generated[0] and not first:
            run.add(step)
        first = first and not step.generated[0]  # the first step that generates has read the prompt
    run.drafted = counted.tokens
    return run


def measure(model: Model, draft: Model, given: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each temperature and method."""
    items = [item for source in given.prompts for item in load_items(source, given.num_prompts)]
    prompts = [encode(model.tokenizer, item, []) for item in items]
    methods = [SEQUENTIAL, *given.methods]
    runs: dict[tuple[float, str], list[list[Run]]] = {
        (temperature, name): [[] for _ in prompts] for temperature in given.temperatures for name in methods
    }
    with progress(given.rounds * len(prompts) * len(runs)) as advance:
        for seed in range(given.rounds):
            for place, prompt in enumerate(prompts):
                for temperature, name in runs:
                    options = {} if name == SEQUENTIAL else {"overlap": False}
                    parts = get(name).build(model.target, draft=draft.target, depth=given.depth, **options)
                    sampling = SamplingParams(temperature, max_tokens=given.max_tokens, seed=seed)
                    runs[temperature, name][place].append(decode(parts, prompt, sampling))
                    advance(f"{name}, temperature {temperature:g}", 1)
    return [
        row(temperature, name, found, runs[temperature, SEQUENTIAL])
        for (temperature, name), found in runs.items()
    ]


def row(
    temperature: float, name: str, found: Sequence[Sequence[Run]], sequential: Sequence[Sequence[Run]]
) -> dict[str, Any]:
    """The values of one method, with intervals over prompts; ratios are those of paired runs."""
    pairs = [list(zip(*both, strict=True)) for both in zip(found, sequential, strict=True)]
    every = [run for each in found for run in each]

    def ratio(of: str, over: str) -> Interval:
        return median_interval(
            [
                [getattr(base, over) / base.tokens * run.tokens / getattr(run, of) for run, base in each]
                for each in pairs
            ]
        )

    predicted = [[run.predicted * run.tokens / run.two_devices for run in each] for each in found]
    total = sum(run.tokens for run in every)
    return {
        "temperature": temperature,
        "method": name,
        "tokens_per_step": total / sum(run.steps for run in every),
        "drafted_in_vain": (sum(run.drafted for run in every) - sum(run.accepted for run in every)) / total,
        "milliseconds_per_token": 1000 * sum(run.one_device for run in every) / total,
        **(
            {}
            if name == SEQUENTIAL
            else {
                "on_two_devices": 1000 * sum(run.two_devices for run in every) / total,
                "ratio_on_two_devices": ratio("two_devices", "one_device").to_json(),
                "predicted_over_virtual": median_interval(predicted).to_json(),
            }
        ),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overlap", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--draft", default="zoo:draft")
    parser.add_argument("--methods", nargs="+", default=["pearl"])
    parser.add_argument("--prompts", nargs="+", default=["code", "edit", "arithmetic"])
    parser.add_argument("--num-prompts", type=int, default=6, help="of each set")
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each model")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    model, draft = (outpace.load(name, compile=given.compile) for name in (given.target, given.draft))
    rows = measure(model, draft, given)
    if given.json:
        settings = {name: value for name, value in vars(given).items() if name != "json"}
        write_json(given.json, {"results": rows, "settings": settings, "provenance": provenance()})
    print_tables([table(rows)])
    return 0


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """The rows for a terminal."""
    headings = (
        "temperature", "method", "tokens/step", "drafted in vain per token", "ms/token in turn",
        "on two devices", "over sequential", "predicted / virtual clock",
    )  # fmt: skip
    cells = [
        (
            f"{each['temperature']:g}",
            each["method"],
            f"{each['tokens_per_step']:.2f}",
            f"{each['drafted_in_vain']:.2f}",
            f"{each['milliseconds_per_token']:.2f}",
            f"{each['on_two_devices']:.2f}" if "on_two_devices" in each else "",
            _interval(each.get("ratio_on_two_devices")),
            _interval(each.get("predicted_over_virtual")),
        )
        for each in rows
    ]
    return Table("Drafting while the target works, by the virtual clock", headings, tuple(cells))


def _interval(found: dict[str, float] | None) -> str:
    return "" if found is None else f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


if __name__ == "__main__":
    sys.exit(main())
