"""A drafter that is drafted for: three models together have the target's distribution, mistakes in the claim
and in the middle model's cache are caught, and drafts are those of drafters that know nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from random import Random
from typing import Any

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import (
    Cache,
    Drafter,
    Guarantee,
    Parts,
    Plan,
    Target,
    TargetWithLayers,
    Verifier,
)
from outpace.core.noise import Key, KeyedNoise, Noise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.drafters.compose import staged
from outpace.drafters.compose.staged import Staged, noise_of_step
from outpace.drafters.compose.union import Rekeyed
from outpace.drafters.lookup.ngram import NGram
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.drafters.no_draft import NoDraft
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.head_model import HeadModel
from outpace.models.skip_set import SkipSet
from outpace.models.slim.slim_table import SlimTable
from outpace.models.table import TableCache, TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import Case, Leak, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables, transformers_models
from outpace.proof.suite import CAUGHT
from outpace.schedules.run_ahead import RunAhead
from outpace.verifiers.block import Block
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection
from tests.tiers import slow

CASES = [
    Case((0, 1, 0), SamplingParams(1.0, max_tokens=4)),
    Case((1,), SamplingParams(0.7, max_tokens=3, stop=(1,))),
    Case((1, 1, 0), SamplingParams(max_tokens=6)),
]


TOP_2 = SamplingParams(1.0, top_k=2, max_tokens=4)


@cache
def models(kind: str = "table") -> Models:
    if kind == "transformers":
        return transformers_models(vocab=3)
    return tables(3 if kind == "table for heads" else 2)


def inner_of(
    of: Models, rule: Callable[[], Verifier], drafter: Drafter | None = None, depth: int = 2
) -> Parts:
    return Parts(of.drafts[0], drafter or DraftModel(of.drafts[1]), rule(), Fixed(depth))


def parts(
    kind: str = "table",
    inside: Callable[[], Verifier] = Rejection,
    outside: Callable[[], Verifier] = Rejection,
    make: Callable[..., Staged] = Staged,
    inner_depth: int = 2,
    depth: int = 3,
    **given: Any,
) -> Parts:
    of = models(kind)
    return Parts(of.target, make(inner_of(of, inside, depth=inner_depth), **given), outside(), Fixed(depth))


def error(build: Callable[[], Parts], kind: str = "table", cases: Sequence[Case] = CASES[:2]) -> float:
    try:
        found = enumerate_distributions(build, cases)
    except Leak:  # a run ends otherwise alone than in a batch
        return 1.0
    assert found.counts.accepted and found.counts.deepest >= 2
    return largest_error(found, models(kind).logits, cases)


@pytest.mark.parametrize(
    ("kind", "inside", "outside", "least"),
    [
        ("table", Block, Rejection, 9),
        slow("table", Rejection, Block, 9),
        slow("table", Block, Block, 2),
        slow("table", Rejection, Rejection, 2),
        slow("table", Match, Rejection, 9),
        slow("transformers", Block, Block, 9),
        slow("transformers", Rejection, Rejection, 2),
    ],
)
def test_three_models_have_the_distribution_of_the_target(
    kind: str, inside: Callable[[], Verifier], outside: Callable[[], Verifier], least: int
) -> None:
    cases = CASES
    if kind != "table":  # two possible tokens each
        cases = [replace(case, sampling=replace(case.sampling, top_k=2)) for case in CASES]
    assert error(lambda: parts(kind, inside, outside, least=least), kind, cases) < 1e-12


@pytest.mark.slow
def test_four_models_have_it_too() -> None:
    of = models()

    def build() -> Parts:
        between = Parts(TableTarget(2, seed=9, order=2), Staged(inner_of(of, Block)), Rejection(), Fixed(2))
        return Parts(of.target, Staged(between), Block(), Fixed(3))

    assert error(build, cases=CASES[:1]) < 1e-12


class CutAfterLooking(Staged):
    def _tree(self, ctx: Context, drafted: Any) -> TokenTree:
        for tokens, q in zip(drafted.tokens, drafted.q, strict=True):
            if tokens and q and tokens[-1] == 0:
                tokens.pop()
                q[:] = [torch.cat(q)[:-1]]
        return super()._tree(ctx, drafted)


class ClaimsTheSmallest(Staged):
    """Claims of accepted tokens name the model that drafted them first."""

    def _record_q(
        self, own: Context, rows: Any, tree: TokenTree, found: Any, target_probs: Any, drafted: Any
    ) -> None:
        super()._record_q(own, rows, tree, found, target_probs, drafted)
        claim = tree.claim
        for row, (node, _) in zip(rows, found, strict=True):
            if isinstance(claim, Drawn) and drafted.q[row]:
                for index, each in enumerate(tree.forest.path(node)[1:]):
                    drafted.q[row][-1] = drafted.q[row][-1].index_put(
                        (torch.tensor(index),), claim.q[claim.row[each]]
                    )


@pytest.mark.parametrize("mistake", [CutAfterLooking, ClaimsTheSmallest])
def test_a_wrong_claim_is_caught(mistake: type[Staged]) -> None:
    assert error(lambda: parts(make=mistake), cases=CASES[:1]) > CAUGHT


@pytest.mark.parametrize("uses", ["{}", "{} of {}", "inner {}"])
def test_noise_that_is_used_twice_is_caught(monkeypatch: pytest.MonkeyPatch, uses: str) -> None:
    """By inner and outer method, by their first steps, or by two inner steps."""

    def reused(noise: Noise, number: int) -> Noise:
        kind = uses if number else uses.removesuffix(" of {}")
        return Rekeyed(noise, lambda key: key._replace(use=kind.format(key.use, number)))

    monkeypatch.setattr(staged, "noise_of_step", reused)
    longer = [Case((1,), SamplingParams(1.0, max_tokens=5))]  # several inner steps in a draft
    assert error(lambda: parts(outside=Block, inner_depth=1, depth=4), cases=longer) > CAUGHT


def test_keys_of_stages_differ_also_where_their_names_begin_alike() -> None:
    noise, key = KeyedNoise([1], [1], [5]), Key([0], [0], [0], "accept")
    kinds = [noise, *(noise_of_step(noise, number) for number in range(4))]
    kinds += [noise_of_step(each, number) for each in kinds[1:] for number in range(4)]
    numbers = [
        float(each.choose(torch.ones(1, 1 << 14), key._replace(use=use)))
        for each in kinds
        for use in ("accept", "residual", "target")
    ]
    assert len(set(numbers)) > len(numbers) - 3  # two may be equal by chance


def head_of(middle: Target) -> FeatureDrafter:
    """An untrained head of EAGLE for the middle model."""
    assert isinstance(middle, TargetWithLayers)
    head = HeadModel(untrained_eagle(middle, 0))
    return FeatureDrafter(head, middle.vocab, partial(grow, sampled=True), sampled=True)


@pytest.mark.slow
def test_a_head_on_the_middle_model_has_the_distribution_of_the_target() -> None:
    of = models("table for heads")

    def build() -> Parts:
        inner = inner_of(of, Rejection, head_of(of.drafts[0]))
        return Parts(of.target, Staged(inner), Rejection(), Fixed(3))

    assert error(build, "table for heads", [replace(CASES[0], sampling=TOP_2)]) < 1e-10


class KeepsRejected(Staged):
    """Leaves the entry of the first rejected token in the middle model's cache."""

    def _take_back(self, ctx: Context, cache: Cache) -> None:
        before = list(cache.lengths)
        super()._take_back(ctx, cache)
        states = cache._kept if isinstance(cache, TableCache) else []
        for slot in ctx.slots:
            if states and 0 < cache.lengths[slot] < before[slot]:
                states[slot][-1] = 0


def rejoined_drafts(kind: str, make: Callable[[], Staged]) -> int:
    """Compares the drafts of one drafter over texts that the target changes with those of drafters that begin
    anew; returns how often tokens were taken back."""
    of, choice = models(kind), Random(3)
    vocab, cache, kept, taken_back = of.target.vocab, of.target.open(2, 64), make(), 0
    text = [[choice.randrange(vocab) for _ in range(3 + row)] for row in range(2)]
    for turn in range(30):
        ctx = Context(
            tokens=tuple(torch.tensor(row) for row in text),
            committed=tuple(map(len, text)),
            max_draft_depth=(9, 9),
            slots=(0, 1),
            cache=cache,
            sampling=(SamplingParams(1.0, max_tokens=99, seed=3), SamplingParams(max_tokens=99)),
            noise=KeyedNoise([3, 0], [turn, turn], [len(row) for row in text]),
            prompt_lengths=(1, 1),
        )
        assumed = [[choice.randrange(vocab) for _ in range(choice.randrange(3))] for _ in text]
        ahead = ctx.assuming(assumed)
        depths = (4, 3) if turn % 5 else (0, 2)  # one row pauses
        draft, new = (each.propose(ahead, Plan(depths)).tree for each in (kept, make()))
        assert draft.token_list() == new.token_list() and draft.forest is new.forest
        for own, other in zip(*(getattr(tree.claim, "q", ()) for tree in (draft, new)), strict=True):
            assert torch.allclose(own, other, atol=1e-9)
        tokens = draft.token_list()
        for row in range(2):
            drafted = [*assumed[row], *(tokens[node] for node in draft.forest.nodes[row][1:])]
            right = choice.randrange(len(drafted) + 1)
            taken_back += right < len(drafted)
            text[row] += [*drafted[:right], choice.randrange(vocab)]
        if len(text[0]) > 40:
            text = [row[:3] for row in text]
            kept.release([0, 1])
    return taken_back


@pytest.mark.parametrize("kind", ["table", slow("transformers")])
@pytest.mark.parametrize("drafter", ["model", "n-grams", "head"])
def test_drafts_are_those_of_a_drafter_that_begins_anew(kind: str, drafter: str) -> None:
    if kind == "table" and drafter == "head":
        kind = "table for heads"

    def make(of: type[Staged] = Staged) -> Staged:
        inner = {
            "model": lambda: None,
            "n-grams": lambda: NGram(2, allow_shorter=True),
            "head": lambda: head_of(models(kind).drafts[0]),
        }[drafter]()
        return of(inner_of(models(kind), Rejection, inner), least=3)

    assert rejoined_drafts(kind, make) > 20
    if kind != "transformers":
        with pytest.raises(AssertionError):
            rejoined_drafts(kind, lambda: make(KeepsRejected))


def test_texts_do_not_depend_on_other_rows_and_are_the_target_s_at_temperature_0() -> None:
    prompts = [[0, 1, 1, 0, 1], [1], [1, 1]]
    sampling = [SamplingParams(t, max_tokens=30, seed=s) for s, t in enumerate((1.0, 0.0, 0.7))]
    found = texts(parts(), prompts, sampling)
    for own, prompt, params in zip(found, prompts, sampling, strict=True):
        assert texts(parts(), [prompt], [params]) == [own]
    plain = Parts(models().target, NoDraft(), Match(), Fixed(0))
    assert found[1] == texts(plain, [[1]], sampling[1:2])[0]


class Lossy(Match):
    guarantee = Guarantee.LOSSY


def test_a_method_that_is_not_exact_drafts_without_a_claim_and_says_so() -> None:
    with pytest.warns(UserWarning, match="not exact"):
        assert parts(inside=Lossy).drafter.claims == ()
        lossy = parts(inside=Lossy, outside=Match)
    plain, sampling = (
        Parts(models().target, NoDraft(), Match(), Fixed(0)),
        [SamplingParams(1.0, max_tokens=30)],
    )
    assert texts(lossy, [[1]], sampling) == texts(plain, [[1]], sampling)


def test_methods_that_cannot_draft_in_stages_are_refused() -> None:
    of = models()
    layers = SlimTable(TableTarget(2), SkipSet(frozenset({1}), frozenset({1})))
    with pytest.raises(ValueError, match="NoDraft cannot draft for a middle model"):
        Staged(inner_of(of, Match, NoDraft()))
    with pytest.raises(ValueError, match="a KV cache of its own"):
        Staged(replace(inner_of(of, Match), target=layers))
    with pytest.raises(ValueError, match="at least 0 tokens"):
        Staged(inner_of(of, Match), least=0)
    pearl = replace(inner_of(of, Match), schedule=RunAhead(DraftModel(of.drafts[1])))
    with pytest.raises(ValueError, match="schedule"):
        Staged(pearl)
