"""Prove that a recipe's output law is the target's: enumerate everything it can do on small models, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from outpace.core.context import Context, Sampling
from outpace.core.contracts import Law, Parts, Scores
from outpace.core.tree import TokenTree
from outpace.law.enumerate import Branch, EnumeratedNoise
from outpace.law.reference import Logits, difference, plain_law
from outpace.law.texts import texts
from outpace.sampling.law import TargetLaw

Outcomes = dict[tuple[int, ...], float]  # continuation -> probability
BOUND = 1e-10  # largest difference of a probability that is put down to rounding, in float64


@dataclass(frozen=True)
class Case:
    """One request whose output law is enumerated."""

    prompt: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True)
class Enumeration:
    """The law of every case, and how much was run for it."""

    laws: list[Outcomes]
    runs: int
    replayed: int  # of these, repeated alone in a batch of one, with the same outcome


class TooMany(RuntimeError):
    """More runs are needed than were allowed."""


class Leak(AssertionError):
    """A row's outcome depends on what else is in its batch."""


def enumerate_laws(
    build: Callable[[], Parts],
    cases: Sequence[Case],
    *,
    noise: type[EnumeratedNoise] = EnumeratedNoise,
    batch: int = 256,
    replays: int = 20,
    most: int = 200_000,
    law: Callable[[Scores, TokenTree, Context], Law] = TargetLaw,
) -> Enumeration:
    """The exact law of each case under these parts; all cases share ragged batches of up to `batch` rows."""
    laws: list[Outcomes] = [{} for _ in cases]
    pending = [Branch((), case) for case in range(len(cases))]
    runs = 0
    ends: list[tuple[Branch, list[int]]] = []
    picker = Random(0)
    while pending:
        branches, pending = pending[:batch], pending[batch:]
        for branch, text in zip(branches, _run(build, cases, branches, noise, law), strict=True):
            found = laws[branch.case]
            found[tuple(text)] = found.get(tuple(text), 0.0) + branch.chance
            pending += [Branch(script, branch.case) for script in branch.left_open]
            runs += 1
            if len(ends) < replays:
                ends.append((branch, text))
            elif picker.random() < replays / runs:
                ends[picker.randrange(replays)] = (branch, text)
        if runs + len(pending) > most:
            raise TooMany(f"more than {most} runs are needed: use fewer tokens or a smaller tree")
    for branch, text in ends:
        alone = Branch(tuple(branch.made), branch.case)
        if _run(build, cases, [alone], noise, law) != [text] or abs(alone.chance - branch.chance) > BOUND:
            raise Leak(f"alone in its batch, a run of {cases[branch.case]} ends otherwise than among {batch} rows")
    return Enumeration(laws, runs, len(ends))


def _run(
    build: Callable[[], Parts],
    cases: Sequence[Case],
    branches: Sequence[Branch],
    kind: type[EnumeratedNoise],
    law: Callable[[Scores, TokenTree, Context], Law],
) -> list[list[int]]:
    """Decode one row per branch, its seed being its index, and return the continuations."""

    def noise(seeds: Sequence[int], turns: Sequence[int], lengths: Sequence[int]) -> EnumeratedNoise:
        return kind([branches[seed] for seed in seeds], turns, lengths)

    sampling = [replace(cases[branch.case].sampling, seed=index) for index, branch in enumerate(branches)]
    return texts(build(), [cases[branch.case].prompt for branch in branches], sampling, noise, law)


def largest_error(enumeration: Enumeration, logits: Logits, cases: Sequence[Case]) -> float:
    """Largest difference of any outcome's probability from plain decoding, over all cases."""
    pairs = zip(enumeration.laws, cases, strict=True)
    return max(difference(law, plain_law(logits, case.prompt, case.sampling)) for law, case in pairs)
