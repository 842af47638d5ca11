"""Make the runs of a benchmark: every contender on every prompt in every round, interleaved."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from torch import Tensor

from outpace.bench.measure.contender import Contender, PeerFailed, PeerRefused, RunOutcome, shortened
from outpace.bench.measure.metrics import Counts, first_difference, repetition
from outpace.bench.measure.text_quality import TextQuality
from outpace.bench.measure.workload import WorkloadItem, encode
from outpace.core.sampling_params import SamplingParams

WARM_UP_TOKENS = 12


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as token ids."""

    id: str
    workload: str
    tokens: Tensor  # (T,) int64
    answer: str | None = None  # the right answer, if it is known


@dataclass(frozen=True)
class Trial:
    """One planned run of each contender: a batch of prompts at one temperature in one round."""

    index: int  # index of the batch
    cases: tuple[EncodedPrompt, ...]
    temperature: float
    round: int
    again: int = 0  # earlier repetitions of this batch in the round

    @property
    def workload(self) -> str:
        return self.cases[0].workload


@dataclass(frozen=True)
class Run:
    """The result of one contender on one trial."""

    contender: str
    trial: Trial
    seconds: float
    prompt_seconds: float | None  # seconds of the steps that read prompts; None: not reported
    early_tokens: int | None  # number of tokens generated in those steps
    counts: Counts | None
    outputs: tuple[tuple[int, ...], ...]
    quality: tuple[TextQuality, ...] | None = None  # of the outputs; None: not measured

    @property
    def tokens(self) -> int:
        return sum(map(len, self.outputs))

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    @property
    def decode_seconds(self) -> float | None:
        """Seconds that all tokens would take at the speed of the steps that read no prompt; None if these
        were not timed or there were none."""
        if self.prompt_seconds is None or self.early_tokens is None or self.early_tokens == self.tokens:
            return None
        return (self.seconds - self.prompt_seconds) * (self.tokens / (self.tokens - self.early_tokens))

    @property
    def repetition(self) -> float:
        """Share of repeated 4-grams in the output, averaged over the rows."""
        return sum(map(repetition, self.outputs)) / len(self.outputs)

    def differences(self, reference: Run) -> list[int | None]:
        """Per row, the index of the first token that differs from the reference run's; None where they are
        equal."""
        return [first_difference(a, b) for a, b in zip(self.outputs, reference.outputs, strict=True)]


def encode_prompts(
    items: Sequence[WorkloadItem],
    tokenizer: Any,
    plain: Contender,
    sampling: SamplingParams,
    *,
    max_length: int | None = None,
) -> tuple[list[EncodedPrompt], list[str]]:
    """(Encoded prompts, ids of prompts left out: empty ones, and those that with `max_tokens` new tokens
    exceed `max_length` tokens). Each turn of a conversation is a prompt; the replies to earlier turns come
    from plain greedy decoding, so that all contenders get the same prompts."""
    cases: list[EncodedPrompt] = []
    too_long: list[str] = []
    greedy = replace(sampling, temperature=0.0)
    for item in items:
        replies: list[str] = []
        turns = len(item.turns) if item.chat else 1
        for turn in range(turns):
            name = f"{item.id}#{turn + 1}" if len(item.turns) > 1 else item.id
            tokens = encode(tokenizer, item, replies)
            if len(tokens) == 0 or (
                max_length is not None and len(tokens) + sampling.max_tokens > max_length
            ):
                too_long.append(name)
                break
            is_last = turn + 1 == turns
            cases.append(EncodedPrompt(name, item.workload, tokens, item.answer if is_last else None))
            if not is_last:
                reply = plain.run([tokens], [greedy]).outputs[0]
                replies.append(tokenizer.decode([token for token in reply if token not in sampling.stop]))
    return cases, too_long


def batches(cases: Sequence[EncodedPrompt], size: int) -> list[tuple[EncodedPrompt, ...]]:
    """Batches of at most `size` consecutive prompts of the same workload."""
    groups: dict[str, list[EncodedPrompt]] = {}
    for case in cases:
        groups.setdefault(case.workload, []).append(case)
    return [tuple(g[start : start + size]) for g in groups.values() for start in range(0, len(g), size)]


def trials(
    groups: Sequence[tuple[EncodedPrompt, ...]], temperatures: Sequence[float], rounds: int, repeat: int = 1
) -> Iterator[Trial]:
    """All planned trials. Rounds are the outermost loop, so that after an early stop all prompts have about
    the same number of runs; within a round all trials of one temperature are consecutive, because learnt
    state is dropped between temperatures."""
    for number, temperature, again in product(range(rounds), temperatures, range(repeat)):
        for index, group in enumerate(groups):
            yield Trial(index, group, temperature, number, again)


def rotated(contenders: Sequence[Contender], trial: Trial) -> list[Contender]:
    """The order of contenders in a trial, rotated so that each is first equally often."""
    start = (trial.index + trial.round + trial.again) % len(contenders)
    return [*contenders[start:], *contenders[:start]]


def seeds(trial: Trial, base: int) -> list[int]:
    """One seed per row: the same for every contender, different in every batch, round and repetition."""
    first = base + 1_000_003 * trial.round + 15_485_863 * trial.again + 1009 * trial.index
    return [first + row for row in range(len(trial.cases))]


def params_of(trial: Trial, sampling: SamplingParams, seed: int) -> list[SamplingParams]:
    """The sampling parameters of each row of a trial."""
    return [replace(sampling, temperature=trial.temperature, seed=number) for number in seeds(trial, seed)]


def run_trial(contender: Contender, trial: Trial, sampling: SamplingParams, seed: int) -> Run:
    """Run one contender on one trial; prompts one at a time if the contender is `single`."""
    row_params = params_of(trial, sampling, seed)
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
    return Run(
        contender.name,
        trial,
        outcome.seconds,
        outcome.prompt_seconds,
        outcome.early_tokens,
        outcome.counts,
        outputs,
    )


def warm_up(
    contender: Contender, trial: Trial, sampling: SamplingParams, temperatures: Sequence[float]
) -> None:
    """Run a trial briefly at each temperature, so that compilation and other first-call costs are not
    timed."""
    short = shortened(sampling, WARM_UP_TOKENS)
    for temperature in temperatures:
        run_trial(contender, replace(trial, temperature=temperature), short, 0)


def interleave(
    contenders: Sequence[Contender],
    planned: Sequence[Trial],
    sampling: SamplingParams,
    *,
    seed: int = 0,
    unsupported: Container[tuple[str, float]] = (),  # (contender, temperature) to skip
    after: Callable[[Run], None] = lambda run: None,
    lost: Callable[[str, str], None] = lambda name, why: None,
) -> list[Run]:
    """Make all planned runs, contenders interleaved. `after` is called with each run, so that runs survive an
    interruption; `lost` with the name of a peer that failed and the reason, while the others continue.

    Contenders are reset before every round and temperature: they learn only from trials of the same round and
    temperature.
    """
    runs: list[Run] = []
    gone: set[str] = set()
    position: tuple[int, float] | None = None
    for trial in planned:
        if position != (trial.round, trial.temperature):
            position = trial.round, trial.temperature
            for contender in contenders:
                contender.reset()
        for contender in rotated(contenders, trial):
            if contender.name in gone or (contender.name, trial.temperature) in unsupported:
                continue
            try:
                run = run_trial(contender, trial, sampling, seed)
            except PeerFailed as error:
                gone.add(contender.name)
                lost(contender.name, reason(error))
                continue
            runs.append(run)
            after(run)
    return runs


def reason(error: Exception) -> str:
    """The error message for a contender that is left out; the exception's name is omitted for errors of
    peers."""
    return str(error) if isinstance(error, (PeerFailed, PeerRefused)) else f"{type(error).__name__}: {error}"
