"""Prove that a recipe's output law is the target's: enumerate everything it can do on small models, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Generic, TypeVar

from outpace.core.context import Context, Sampling
from outpace.core.contracts import Law, Parts, Scores
from outpace.core.tree import TokenTree
from outpace.law.enumerate import Branch, EnumeratedNoise
from outpace.law.reference import Logits, difference, plain_law
from outpace.law.texts import texts
from outpace.sampling.law import TargetLaw

Outcome = TypeVar("Outcome")  # what a run ends in: a continuation, or those of several rows
BOUND = 1e-10  # largest difference of a probability that is put down to rounding, in float64


@dataclass(frozen=True)
class Case:
    """One request whose output law is enumerated."""

    prompt: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True)
class Enumeration(Generic[Outcome]):
    """The law of every case, and how much was run for it."""

    laws: list[dict[Outcome, float]]  # outcome -> probability
    runs: int
    replayed: int  # of these, repeated alone in a batch of one, with the same outcome


class TooMany(RuntimeError):
    """More runs are needed than were allowed."""


class Leak(AssertionError):
    """An outcome depends on what else is in its batch."""


def enumerate_laws(
    build: Callable[[], Parts],
    cases: Sequence[Case],
    *,
    noise: type[EnumeratedNoise] = EnumeratedNoise,
    batch: int = 256,
    replays: int = 20,
    most: int = 200_000,
    law: Callable[[Scores, TokenTree, Context], Law] = TargetLaw,
) -> Enumeration[tuple[int, ...]]:
    """The exact law of each case under these parts; all cases share ragged batches of up to `batch` rows."""

    def run(branches: Sequence[Branch]) -> list[tuple[int, ...]]:
        return _run(build, cases, branches, noise, law)

    return explore(run, cases, batch=batch, replays=replays, most=most)


def explore(
    run: Callable[[Sequence[Branch]], Sequence[Outcome]],  # branches -> what each of them ends in
    cases: Sequence[object],
    *,
    batch: int,
    replays: int,
    most: int,
) -> Enumeration[Outcome]:
    """The law of what runs of these cases end in, up to `batch` of them at a time, and some of them again alone."""
    laws: list[dict[Outcome, float]] = [{} for _ in cases]
    pending = [Branch((), case) for case in range(len(cases))]
    runs = 0
    ends: list[tuple[Branch, Outcome]] = []
    picker = Random(0)
    while pending:
        branches, pending = pending[:batch], pending[batch:]
        for branch, end in zip(branches, run(branches), strict=True):
            found = laws[branch.case]
            found[end] = found.get(end, 0.0) + branch.chance
            pending += [Branch(script, branch.case) for script in branch.left_open]
            runs += 1
            if len(ends) < replays:
                ends.append((branch, end))
            elif picker.random() < replays / runs:
                ends[picker.randrange(replays)] = (branch, end)
        if runs + len(pending) > most:
            raise TooMany(f"more than {most} runs are needed: use fewer tokens or a smaller tree")
    for branch, end in ends:
        alone = Branch(tuple(branch.made), branch.case)
        if list(run([alone])) != [end] or abs(alone.chance - branch.chance) > BOUND:
            raise Leak(f"alone in its batch, a run of {cases[branch.case]} ends otherwise than among {batch} others")
    return Enumeration(laws, runs, len(ends))


def _run(
    build: Callable[[], Parts],
    cases: Sequence[Case],
    branches: Sequence[Branch],
    kind: type[EnumeratedNoise],
    law: Callable[[Scores, TokenTree, Context], Law],
) -> list[tuple[int, ...]]:
    """Decode one row per branch, its seed being its index, and return the continuations."""

    def noise(seeds: Sequence[int], turns: Sequence[int], lengths: Sequence[int]) -> EnumeratedNoise:
        return kind([branches[seed] for seed in seeds], turns, lengths)

    sampling = [replace(cases[branch.case].sampling, seed=index) for index, branch in enumerate(branches)]
    return list(map(tuple, texts(build(), [cases[branch.case].prompt for branch in branches], sampling, noise, law)))


def largest_error(enumeration: Enumeration[tuple[int, ...]], logits: Logits, cases: Sequence[Case]) -> float:
    """Largest difference of any outcome's probability from plain decoding, over all cases."""
    pairs = zip(enumeration.laws, cases, strict=True)
    return max(difference(law, plain_law(logits, case.prompt, case.sampling)) for law, case in pairs)
