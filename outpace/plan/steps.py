"""Times and counts of decoding steps: of methods that take turns, with given draft lengths."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import torch
from torch import Tensor

from outpace.bench.measure.metrics import Counts, StepRecord, reads_prompts
from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Step, Want
from outpace.core.sampling_params import SamplingParams
from outpace.engine.engine import Engine

ROUNDS = 7  # timed steps of each length


class Cycle:
    """Implementation of core.contracts.Controller: drafts of each of these lengths in turn."""

    want = Want()
    plans_across_rows = False

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths, self._num_plans = lengths, 0

    def plan(self, ctx: Context) -> Plan:
        length = self._lengths[self._num_plans % len(self._lengths)]
        self._num_plans += 1
        return Plan((length,) * len(ctx.slots))

    def observe(self, step: Step) -> None:
        """Does nothing: the plan follows from the number of the step."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state is kept per request."""


@dataclass(frozen=True)
class TimedStep:
    """A step of which every row has room for a whole draft and none reads a prompt."""

    rows: int
    drafted: int  # draft tokens of all rows
    depth: int  # of the deepest draft
    context: float  # committed tokens of a row, on average
    forwards: int  # of the draft model
    draft_seconds: float  # of these forwards
    seconds: float  # of the whole step
    generated: int  # tokens of all rows

    @property
    def length(self) -> int:
        """Draft tokens of a row, where all rows have as many."""
        return self.drafted // self.rows

    @staticmethod
    def of(step: Step) -> TimedStep:
        rows, forest = len(step.ctx.slots), step.draft.tree.forest
        return TimedStep(
            rows,
            len(forest) - rows,
            max(forest.depths),
            mean(step.ctx.committed),
            step.draft.forwards,
            float(step.draft.seconds),
            sum(float(each) for part, each in step.seconds.items() if part != "caller"),
            sum(map(len, step.generated)),
        )


def steps_in_turn(
    methods: Mapping[str, tuple[Parts, Sequence[int]]],  # name -> parts, lengths of the drafts of a turn
    prompts: Sequence[Tensor],
    *,
    rows: int,
    sampling: SamplingParams,
    rounds: int = ROUNDS,
    after: Callable[[], None] = lambda: None,
) -> dict[str, list[TimedStep]]:
    """Steps by name. The names take turns, all lengths in each; the first step of a turn comes after another
    method's and is left out. The parts' controllers are replaced where there are several lengths. ValueError
    if answers are too short for whole drafts."""
    longest = max(length for _, lengths in methods.values() for length in lengths)
    if sampling.max_tokens < 2 * longest + 2:
        raise ValueError(f"drafts of {longest} tokens need max_tokens of at least {2 * longest + 2}")
    running = {
        name: _steps(parts, lengths, prompts, rows, sampling) for name, (parts, lengths) in methods.items()
    }
    found = {name: list[TimedStep]() for name in methods}
    for _ in range(rounds):
        for name, steps in running.items():
            next(steps)
            found[name] += [next(steps) for _ in methods[name][1]]
            after()
    for steps in running.values():
        steps.close()
    return found


def _steps(
    parts: Parts, lengths: Sequence[int], prompts: Sequence[Tensor], rows: int, sampling: SamplingParams
) -> Generator[TimedStep, None, None]:
    """The steps of a method, without end: texts that end are followed by others."""
    number = 0
    if len(lengths) > 1:
        parts = replace(parts, controller=Cycle(lengths))
    while True:
        texts = [prompts[(number + row) % len(prompts)] for row in range(rows)]
        params = [replace(sampling, seed=number + row, stop=()) for row in range(rows)]
        number += rows
        for step in Engine.of(parts, texts, params).steps():
            if reads_prompts(step) or len(step.ctx.slots) < rows:
                continue
            if min(step.ctx.max_draft_depth) >= max(lengths):
                yield TimedStep.of(step)


def decoded_counts(
    parts: Parts,
    prompts: Sequence[Tensor],
    sampling: SamplingParams,
    *,
    after: Callable[[], None] = lambda: None,
) -> Counts:
    """What is accepted while each prompt is decoded alone."""
    found = Counts()
    for number, prompt in enumerate(prompts):
        params = replace(sampling, seed=sampling.seed + number)
        steps = Engine.of(parts, [prompt], [params]).steps()
        found += Counts.of(StepRecord.of(step) for step in steps if any(step.generated))
        after()
    return found


def lengthened(prompts: Sequence[Tensor], length: int) -> list[Tensor]:
    """As many texts of `length` tokens: each prompt followed by the others, as often as needed."""
    found: list[Tensor] = []
    for first in range(len(prompts)):
        order = [*prompts[first:], *prompts[:first]]
        whole = torch.cat(order)
        found.append(whole.repeat(-(-length // len(whole)))[:length])
    return found
