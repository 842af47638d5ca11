"""Prove that rows which draft for one another stay independent: the joint distribution of all their texts, by
enumeration.

Every draw of every row of a group is a choice of one run, so that the chance of a run is that of all texts
together. It has to be the product of what plain decoding gives each row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from time import perf_counter
from typing import Any

from outpace.core.contracts import Parts, Recipe
from outpace.core.noise import Key
from outpace.core.sampling_params import SamplingParams
from outpace.proof.decode_all import texts
from outpace.proof.draft_counts import DraftCounts
from outpace.proof.enumerated_noise import Branch, EnumeratedNoise, Name
from outpace.proof.enumeration import Enumeration, explore
from outpace.proof.models import Models
from outpace.proof.option_values import plain
from outpace.proof.per_row_drafter import group_by_group
from outpace.proof.reference import Logits, difference, plain_distribution
from outpace.proof.result import Proof
from outpace.proof.sampling_cases import crossed

BATCH = 128  # runs in one session
Texts = tuple[tuple[int, ...], ...]  # one continuation a row


@dataclass(frozen=True)
class Group:
    """Rows of one prompt that are decoded together."""

    prompt: tuple[int, ...]
    sampling: tuple[SamplingParams, ...]  # one a row


class JointNoise(EnumeratedNoise):
    """Enumerated noise for rows of one run: numbers are also named by the row's place in its group."""

    def __init__(
        self, branches: Sequence[Branch], members: Sequence[int], turns: Sequence[int], lengths: Sequence[int]
    ) -> None:
        super().__init__(branches, turns, lengths)
        self._members = members

    def _names(self, key: Key) -> list[tuple[Branch, Name]]:
        named = super()._names(key)
        return [
            (branch, (self._members[row], *name)) for (branch, name), row in zip(named, key.rows, strict=True)
        ]


def enumerate_joint(
    build: Callable[[], Parts],
    groups: Sequence[Group],
    *,
    noise: type[JointNoise] = JointNoise,
    batch: int = BATCH,
    replays: int = 20,
    most: int = 200_000,
) -> Enumeration[Texts]:
    """The exact joint distribution of each group under these parts, up to `batch` runs in one session.

    Each run has a drafter of its own there: what rows of other runs say is no part of it.
    """
    counts = DraftCounts()
    run = partial(_run, build, groups, noise, counts)
    return replace(explore(run, groups, batch=batch, replays=replays, most=most), counts=counts)


def _run(
    build: Callable[[], Parts],
    groups: Sequence[Group],
    kind: type[JointNoise],
    counts: DraftCounts,
    branches: Sequence[Branch],
) -> list[Texts]:
    """Decode the group of each branch, the seed of a row being its slot, and return the continuations."""
    owners = [index for index, branch in enumerate(branches) for _ in groups[branch.case].sampling]
    members = [member for branch in branches for member in range(len(groups[branch.case].sampling))]
    row_params = [params for branch in branches for params in groups[branch.case].sampling]

    def noise(seeds: Sequence[int], turns: Sequence[int], lengths: Sequence[int]) -> JointNoise:
        return kind(
            [branches[owners[slot]] for slot in seeds], [members[slot] for slot in seeds], turns, lengths
        )

    found = texts(
        counts.watch(build() if len(branches) == 1 else group_by_group(build, owners)),
        [groups[branches[owner].case].prompt for owner in owners],
        [replace(params, seed=slot) for slot, params in enumerate(row_params)],
        noise,
        observe=counts.add,
    )
    ended: list[list[tuple[int, ...]]] = [[] for _ in branches]
    for owner, text in zip(owners, found, strict=True):
        ended[owner].append(tuple(text))
    return [tuple(rows) for rows in ended]


def independent(logits: Logits, group: Group) -> dict[Texts, float]:
    """The joint distribution under plain decoding: every row for itself."""
    distributions = [plain_distribution(logits, group.prompt, params).items() for params in group.sampling]
    return {
        tuple(text for text, _ in rows): prod(chance for _, chance in rows)
        for rows in product(*distributions)
    }


def largest_joint_error(enumeration: Enumeration[Texts], logits: Logits, groups: Sequence[Group]) -> float:
    """Largest difference of any joint outcome's probability from plain decoding, over all groups."""
    pairs = zip(enumeration.distributions, groups, strict=True)
    return max(difference(distribution, independent(logits, group)) for distribution, group in pairs)


def prove_together(
    recipe: Recipe, options: dict[str, Any], models: Models, *, exhaustive: bool = False
) -> Iterator[Proof]:
    """Enumerate what rows of one prompt say together, with limits and temperatures of their own, and with
    settings."""
    vocab, tokens, sampled = models.target.vocab, 5 if exhaustive else 4, 2 if exhaustive else 1
    tried = ((tokens, "", siblings(vocab, tokens)), (3, "crossed", settled(vocab, 3, sampled)))
    for longest, settings, groups in tried:
        began = perf_counter()
        found = enumerate_joint(lambda: recipe.build(models.target, **options), groups)
        yield Proof(
            recipe=recipe.name,
            models=models.name,
            options=plain(recipe, options),
            temperatures=tuple(sorted({params.temperature for group in groups for params in group.sampling})),
            tokens=longest,
            batch=BATCH,
            outcomes=sum(map(len, found.distributions)),
            runs=found.runs,
            error=largest_joint_error(found, models.logits, groups),
            seconds=perf_counter() - began,
            settings=settings,
            rows=max(len(group.sampling) for group in groups),
            allowed=found.counts.allowed,
            drafted=found.counts.drafted,
            accepted=found.counts.accepted,
            deepest=found.counts.deepest,
        )


def siblings(vocab: int, tokens: int) -> list[Group]:
    """Groups of two and three rows, alike and with settings of their own, of texts of up to so many
    tokens."""
    # two tokens leave room for texts that are long enough to meet the same few tokens again, and draft
    binary = tuple((token, float("-inf")) for token in range(2, vocab))

    def row(most: int, temperature: float = 1.0, stop: tuple[int, ...] = ()) -> SamplingParams:
        return SamplingParams(temperature, max_tokens=most, stop=stop, logit_bias=binary)

    return [
        Group((0, 1, 1, 0), (row(tokens), row(tokens))),
        Group((1, 1), (row(tokens - 1, 0.7), row(tokens - 2), row(tokens, stop=(1,)))),
        Group((0,), (SamplingParams(max_tokens=tokens + 1), row(tokens))),
        Group(
            (2, 2), (SamplingParams(1.0, max_tokens=tokens - 2), SamplingParams(0.7, max_tokens=tokens - 2))
        ),
    ]


def settled(vocab: int, tokens: int, sampled: int) -> list[Group]:
    """Groups with sampling settings: so many rows sampled and one greedy."""
    row_params = enumerate(crossed(vocab, tokens))
    return [
        Group((index % 3,) * 2, (params,) * sampled + (replace(params, temperature=0.0),))
        for index, params in row_params
    ]
