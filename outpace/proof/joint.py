"""Test by enumeration that rows which draft from one another's texts stay independent.

All random choices of the rows of a group belong to one run, so its probability is the joint probability of
their texts. The joint distribution must be the product of the rows' distributions under plain decoding.
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
from outpace.proof.per_row_controller import controllers_by_row
from outpace.proof.per_row_drafter import group_by_group
from outpace.proof.reference import Promise, difference, plain_distribution, promised
from outpace.proof.result import Proof
from outpace.proof.sampling_cases import crossed

BATCH = 128  # maximum number of runs in one session
Texts = tuple[tuple[int, ...], ...]  # one continuation per row of a group


@dataclass(frozen=True)
class Group:
    """Several samples of one prompt, decoded as rows of one batch."""

    prompt: tuple[int, ...]
    sampling: tuple[SamplingParams, ...]  # one per row


class JointNoise(EnumeratedNoise):
    """Enumerated noise for several rows per run: the keys contain a row's index in its group (`members`)."""

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
    """The exact joint output distribution of each group under these parts, up to `batch` runs in one session.

    Each run has its own drafter, so that it cannot draft from the rows of other runs, and its own controller
    if that plans across rows. The rows of a run always begin in the same step, since the plans of such a
    controller depend on which rows are decoded together. Raises TooMany and Leak.
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
    """Decode the group of each branch (seed of a row: its slot); returns the continuations per group."""
    owners = [index for index, branch in enumerate(branches) for _ in groups[branch.case].sampling]
    members = [member for branch in branches for member in range(len(groups[branch.case].sampling))]
    row_params = [params for branch in branches for params in groups[branch.case].sampling]

    def noise(seeds: Sequence[int], turns: Sequence[int], lengths: Sequence[int]) -> JointNoise:
        return kind(
            [branches[owners[slot]] for slot in seeds], [members[slot] for slot in seeds], turns, lengths
        )

    # a single run uses the method's own drafter; measured times are replaced as in a batch of runs
    parts = controllers_by_row(build, owners)() if len(branches) == 1 else group_by_group(build, owners)
    prompts = [groups[branches[owner].case].prompt for owner in owners]
    continuations = texts(
        counts.watch(parts),
        prompts,
        [replace(params, seed=slot) for slot, params in enumerate(row_params)],
        noise,
        observe=counts.add,
        prompt_tokens=sum(map(len, prompts)),  # all prompts are read in the first step
    )
    ended: list[list[tuple[int, ...]]] = [[] for _ in branches]
    for owner, text in zip(owners, continuations, strict=True):
        ended[owner].append(tuple(text))
    return [tuple(rows) for rows in ended]


def independent(of: Promise, group: Group) -> dict[Texts, float]:
    """The joint output distribution of a group under plain decoding with these logits: the product over its
    rows."""
    distributions = [plain_distribution(of, group.prompt, params).items() for params in group.sampling]
    return {
        tuple(text for text, _ in rows): prod(probability for _, probability in rows)
        for rows in product(*distributions)
    }


def largest_joint_error(enumeration: Enumeration[Texts], of: Promise, groups: Sequence[Group]) -> float:
    """Largest difference of any joint outcome's probability from plain decoding with these logits, over all
    groups."""
    pairs = zip(enumeration.distributions, groups, strict=True)
    return max(difference(distribution, independent(of, group)) for distribution, group in pairs)


def prove_together(
    recipe: Recipe, options: dict[str, Any], models: Models, *, exhaustive: bool = False
) -> Iterator[Proof]:
    """Tests of the joint distribution of several samples of one prompt: with different token limits and
    temperatures, then with combined sampling parameters."""
    vocab, tokens, sampled = models.target.vocab, 5 if exhaustive else 4, 2 if exhaustive else 1
    reference = recipe.build(models.target, **options).reference
    promise = promised(reference, models.logits)
    tried = ((tokens, "", ragged_groups(vocab, tokens)), (3, "crossed", crossed_groups(vocab, 3, sampled)))
    for longest, settings, groups in tried:
        began = perf_counter()
        enumeration = enumerate_joint(lambda: recipe.build(models.target, **options), groups)
        yield Proof(
            recipe=recipe.name,
            models=models.name,
            options=plain(recipe, options),
            temperatures=tuple(sorted({params.temperature for group in groups for params in group.sampling})),
            tokens=longest,
            batch=BATCH,
            outcomes=sum(map(len, enumeration.distributions)),
            runs=enumeration.runs,
            error=largest_joint_error(enumeration, promise, groups),
            loss=None
            if reference is None
            else max(
                difference(independent(promise, group), independent(models.logits, group)) for group in groups
            ),
            seconds=perf_counter() - began,
            settings=settings,
            rows=max(len(group.sampling) for group in groups),
            # with combined parameters rows are too short to accept two draft tokens
            allowed=min(enumeration.counts.allowed, 1) if settings else enumeration.counts.allowed,
            drafted=enumeration.counts.drafted,
            accepted=enumeration.counts.accepted,
            deepest=enumeration.counts.deepest,
        )


def ragged_groups(vocab: int, tokens: int) -> list[Group]:
    """Groups of two and three rows, with equal and with different sampling parameters, of up to `tokens`
    tokens; one with a greedy row is longer."""
    # only two possible tokens: few runs suffice for texts that are long enough to draft from repeated n-grams
    binary = tuple((token, float("-inf")) for token in range(2, vocab))

    def row(max_tokens: int, temperature: float = 1.0, stop: tuple[int, ...] = ()) -> SamplingParams:
        return SamplingParams(temperature, max_tokens=max_tokens, stop=stop, logit_bias=binary)

    return [
        Group((0, 1, 1, 0), (row(tokens), row(tokens))),
        Group((1, 1), (row(tokens - 1, 0.7), row(tokens - 2), row(tokens, stop=(1,)))),
        Group((0,), (SamplingParams(max_tokens=tokens + 1), row(tokens))),
        # a greedy row soon repeats itself, so the other row can accept several tokens of its text at once
        Group((0, 1), (row(3 * tokens, 0.0), row(2 * tokens))),
        Group(
            (2, 2), (SamplingParams(1.0, max_tokens=tokens - 2), SamplingParams(0.7, max_tokens=tokens - 2))
        ),
    ]


def crossed_groups(vocab: int, tokens: int, sampled: int) -> list[Group]:
    """Per combination of sampling parameters (`crossed`) a group of `sampled` sampled and one greedy row."""
    row_params = enumerate(crossed(vocab, tokens))
    return [
        Group((index % 3,) * 2, (params,) * sampled + (replace(params, temperature=0.0),))
        for index, params in row_params
    ]
