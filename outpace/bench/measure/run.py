"""The measurement itself: every contender on every prompt in every round, taking turns."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from torch import Tensor

from outpace.bench.measure.contender import Contender, RunOutcome, shortened
from outpace.bench.measure.metrics import Counts, first_difference, repetition
from outpace.bench.measure.workload import WorkloadItem, encode
from outpace.bench.peers.worker import WorkerDied, WorkerRefused
from outpace.core.sampling_params import SamplingParams

WARM_UP_TOKENS = 12


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as tokens."""

    id: str
    workload: str
    tokens: Tensor  # (T,) int64


@dataclass(frozen=True)
class Trial:
    """One run to be made: these cases together, at this temperature, in this round."""

    index: int  # of the batch among all batches
    cases: tuple[EncodedPrompt, ...]
    temperature: float
    round: int
    again: int = 0  # how often these cases came before in this round

    @property
    def workload(self) -> str:
        return self.cases[0].workload


@dataclass(frozen=True)
class Run:
    """One run made."""

    contender: str
    trial: Trial
    seconds: float
    prompt_seconds: float | None
    counts: Counts | None
    outputs: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.outputs))

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    @property
    def decode_seconds(self) -> float | None:
        """Without reading the prompts."""
        return None if self.prompt_seconds is None else self.seconds - self.prompt_seconds

    @property
    def repetition(self) -> float:
        """Mean over the rows."""
        return sum(map(repetition, self.outputs)) / len(self.outputs)

    def differences(self, reference: Run) -> list[int | None]:
        """Per row the first token that differs from the reference's."""
        return [first_difference(a, b) for a, b in zip(self.outputs, reference.outputs, strict=True)]


def encode_prompts(
    items: Sequence[WorkloadItem],
    tokenizer: Any,
    plain: Contender,
    sampling: SamplingParams,
    *,
    room: int | None = None,
) -> tuple[list[EncodedPrompt], list[str]]:
    """One case a turn, after the replies that plain greedy decoding gives to the turns before, so that every
    contender meets the same prompts; and the ids of those that leave no room for an answer."""
    cases: list[EncodedPrompt] = []
    too_long: list[str] = []
    greedy = replace(sampling, temperature=0.0)
    for item in items:
        replies: list[str] = []
        for turn in range(len(item.turns) if item.chat else 1):
            name = f"{item.id}#{turn + 1}" if len(item.turns) > 1 else item.id
            tokens = encode(tokenizer, item, replies)
            if len(tokens) == 0 or (room is not None and len(tokens) + sampling.max_tokens > room):
                too_long.append(name)
                break
            cases.append(EncodedPrompt(name, item.workload, tokens))
            if turn + 1 < len(item.turns):
                reply = plain.run([tokens], [greedy]).outputs[0]
                replies.append(tokenizer.decode([token for token in reply if token not in sampling.stop]))
    return cases, too_long


def batches(cases: Sequence[EncodedPrompt], size: int) -> list[tuple[EncodedPrompt, ...]]:
    """Neighbours of one workload together, at most `size` of them."""
    groups: dict[str, list[EncodedPrompt]] = {}
    for case in cases:
        groups.setdefault(case.workload, []).append(case)
    return [tuple(g[start : start + size]) for g in groups.values() for start in range(0, len(g), size)]


def trials(
    groups: Sequence[tuple[EncodedPrompt, ...]], temperatures: Sequence[float], rounds: int, repeat: int = 1
) -> Iterator[Trial]:
    """Rounds outermost, so that stopping early leaves every prompt measured about as often; in them all
    prompts of one temperature follow one another, since what is learnt at one is not to serve another."""
    for number, temperature, again in product(range(rounds), temperatures, range(repeat)):
        for index, group in enumerate(groups):
            yield Trial(index, group, temperature, number, again)


def rotated(contenders: Sequence[Contender], trial: Trial) -> list[Contender]:
    """The order of this trial: each contender goes first equally often."""
    start = (trial.index + trial.round + trial.again) % len(contenders)
    return [*contenders[start:], *contenders[:start]]


def seeds(trial: Trial, base: int) -> list[int]:
    """One a row; the same for every contender, new in every round and whenever a prompt comes again."""
    first = base + 1_000_003 * trial.round + 15_485_863 * trial.again + 1009 * trial.index
    return [first + row for row in range(len(trial.cases))]


def run_trial(contender: Contender, trial: Trial, sampling: SamplingParams, seed: int) -> Run:
    """Run one contender on one trial."""
    row_params = [
        replace(sampling, temperature=trial.temperature, seed=number) for number in seeds(trial, seed)
    ]
    prompts = [case.tokens for case in trial.cases]
    if contender.single:
        outcomes = [
            contender.run([prompt], [params]) for prompt, params in zip(prompts, row_params, strict=True)
        ]
        outcome = RunOutcome([o.outputs[0] for o in outcomes], sum(o.seconds for o in outcomes))
        if len(outcomes) == 1:
            outcome = outcomes[0]
    else:
        outcome = contender.run(prompts, row_params)
    outputs = tuple(map(tuple, outcome.outputs))
    return Run(contender.name, trial, outcome.seconds, outcome.prompt_seconds, outcome.counts, outputs)


def warm_up(
    contender: Contender, trial: Trial, sampling: SamplingParams, temperatures: Sequence[float]
) -> None:
    """Everything once and briefly, so that first calls are not measured."""
    short = shortened(sampling, WARM_UP_TOKENS)
    for temperature in temperatures:
        run_trial(contender, replace(trial, temperature=temperature), short, 0)


def interleave(
    contenders: Sequence[Contender],
    planned: Sequence[Trial],
    sampling: SamplingParams,
    *,
    seed: int = 0,
    unsupported: Container[tuple[str, float]] = (),  # (contender, temperature) left out
    after: Callable[[Run], None] = lambda run: None,
    lost: Callable[[str, str], None] = lambda name, why: None,
) -> list[Run]:
    """Make all runs, in turn; `after` is told of each, so that nothing is lost when one of them is
    interrupted, and `lost` of a contender whose process is gone; the others go on.

    Every round, and each temperature in it, begins with contenders that know nothing: a prompt is met as
    often as `planned` says, however often it is measured.
    """
    runs: list[Run] = []
    gone: set[str] = set()
    place: tuple[int, float] | None = None
    for trial in planned:
        if place != (trial.round, trial.temperature):
            place = trial.round, trial.temperature
            for contender in contenders:
                contender.reset()
        for contender in rotated(contenders, trial):
            if contender.name in gone or (contender.name, trial.temperature) in unsupported:
                continue
            try:
                run = run_trial(contender, trial, sampling, seed)
            except WorkerDied as error:
                gone.add(contender.name)
                lost(contender.name, reason(error))
                continue
            runs.append(run)
            after(run)
    return runs


def reason(error: Exception) -> str:
    """Why a contender is left out; a worker's own words need no name of an exception."""
    return (
        str(error) if isinstance(error, (WorkerDied, WorkerRefused)) else f"{type(error).__name__}: {error}"
    )
