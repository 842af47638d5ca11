"""Distribution test: the exact output distribution of a recipe on a small model, by enumerating all outcomes
of its random choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Generic, TypeVar

from outpace.core.contracts import MakeTargetProbs, Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.decode import PROMPT_TOKENS
from outpace.proof.decode_all import texts
from outpace.proof.draft_counts import DraftCounts
from outpace.proof.enumerated_noise import Branch, EnumeratedNoise
from outpace.proof.reference import Promise, difference, plain_distribution
from outpace.sampling.target_probs import LazyTargetProbs

Outcome = TypeVar("Outcome")  # result of a run: a continuation, or the continuations of several rows
BOUND = 1e-10  # largest difference of a probability attributed to rounding, in float64


@dataclass(frozen=True)
class Case:
    """One request whose output distribution is enumerated."""

    prompt: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True)
class Enumeration(Generic[Outcome]):
    """The output distribution of every case, and the number of runs that it took."""

    distributions: list[dict[Outcome, float]]  # outcome -> probability
    runs: int  # number of runs, one per combination of outcomes of the random choices
    repeat: Callable[[], int]  # repeats some runs in a batch of one; returns their number, or raises Leak
    replayed: int = 0  # number of runs repeated in a batch of one, with the same outcome
    counts: DraftCounts = field(default_factory=DraftCounts)  # over all runs


class TooMany(RuntimeError):
    """An enumeration needs more runs than were allowed."""


class Leak(AssertionError):
    """The outcome of a run depends on the other runs in its batch."""


def enumerate_distributions(
    build: Callable[[], Parts],
    cases: Sequence[Case],
    *,
    noise: type[EnumeratedNoise] = EnumeratedNoise,
    batch: int = 256,
    replays: int = 20,
    most: int = 200_000,
    target_probs: MakeTargetProbs = LazyTargetProbs,
    bound: float = BOUND,  # largest difference of a probability attributed to rounding
    prompt_tokens: int = PROMPT_TOKENS,  # most prompt tokens that one step reads
    check: Callable[[TokenTree], None] | None = None,  # called with the draft of every step
    repeated: bool = True,  # False: `repeat` of the result is left to the caller
) -> Enumeration[tuple[int, ...]]:
    """The exact output distribution of each case with these parts. Rows of all cases are decoded in batches
    of up to `batch` rows; `replays` runs are repeated in a batch of one.

    Raises TooMany if more than `most` runs are needed, Leak if a repeated run has another outcome.
    """

    counts = DraftCounts(greedy=all(case.sampling.greedy for case in cases))

    def run(branches: Sequence[Branch]) -> list[tuple[int, ...]]:
        return _run(build, cases, branches, noise, target_probs, counts, prompt_tokens, check)

    found = explore(run, cases, batch=batch, replays=replays, most=most, bound=bound, repeated=repeated)
    return replace(found, counts=counts)


def explore(
    run: Callable[[Sequence[Branch]], Sequence[Outcome]],  # branches -> outcome of each
    cases: Sequence[object],
    *,
    batch: int,
    replays: int,
    most: int,
    bound: float = BOUND,
    repeated: bool = True,  # False: `repeat` of the result is left to the caller
) -> Enumeration[Outcome]:
    """The distribution of the outcomes of each case: runs one branch per combination of random choices, up to
    `batch` branches at a time, and repeats `replays` branches alone. Raises TooMany and Leak."""
    distributions: list[dict[Outcome, float]] = [{} for _ in cases]
    pending = [Branch((), case) for case in range(len(cases))]
    runs = 0
    ends: list[tuple[Branch, Outcome]] = []
    picker = Random(0)
    while pending:
        branches, pending = pending[:batch], pending[batch:]
        for branch, end in zip(branches, run(branches), strict=True):
            distribution = distributions[branch.case]
            distribution[end] = distribution.get(end, 0.0) + branch.probability
            pending += [Branch(script, branch.case) for script in branch.left_open]
            runs += 1
            if len(ends) < replays:
                ends.append((branch, end))
            elif picker.random() < replays / runs:
                ends[picker.randrange(replays)] = (branch, end)
        if runs + len(pending) > most:
            raise TooMany(f"more than {most} runs are needed: use fewer tokens or a smaller tree")

    def repeat() -> int:
        for branch, end in ends:
            alone = Branch(tuple(branch.made), branch.case)
            if list(run([alone])) != [end] or abs(alone.probability - branch.probability) > bound:
                raise Leak(
                    "a run ends otherwise alone than in a batch: rows depend on one another, or on "
                    f"randomness besides the noise ({cases[branch.case]})"
                )
        return len(ends)

    return Enumeration(distributions, runs, repeat, repeat() if repeated else 0)


def _run(
    build: Callable[[], Parts],
    cases: Sequence[Case],
    branches: Sequence[Branch],
    kind: type[EnumeratedNoise],
    target_probs: MakeTargetProbs,
    counts: DraftCounts,
    prompt_tokens: int,
    check: Callable[[TokenTree], None] | None,
) -> list[tuple[int, ...]]:
    """Decode one row per branch (the seed of a row is the index of its branch); returns the continuations."""

    def noise(seeds: Sequence[int], turns: Sequence[int], lengths: Sequence[int]) -> EnumeratedNoise:
        return kind([branches[seed] for seed in seeds], turns, lengths)

    prompts = [cases[branch.case].prompt for branch in branches]
    sampling = [replace(cases[branch.case].sampling, seed=index) for index, branch in enumerate(branches)]

    def observe(step: Step) -> None:
        counts.add(step)
        if check is not None:
            check(step.draft.tree)

    continuations = texts(
        counts.watch(build()), prompts, sampling, noise, target_probs, observe, prompt_tokens
    )
    return list(map(tuple, continuations))


def largest_error(enumeration: Enumeration[tuple[int, ...]], of: Promise, cases: Sequence[Case]) -> float:
    """Largest difference of any outcome's probability from what is promised, over all cases."""
    pairs = zip(enumeration.distributions, cases, strict=True)
    return max(
        difference(distribution, plain_distribution(of, case.prompt, case.sampling))
        for distribution, case in pairs
    )


def largest_difference(one: Promise, other: Promise, cases: Sequence[Case]) -> float:
    """Largest difference of any outcome's probability between two promises, over all cases."""
    return max(
        difference(*(plain_distribution(promise, case.prompt, case.sampling) for promise in (one, other)))
        for case in cases
    )
