"""RASD and READER with a draft head: EAGLE-2's trees and found text together, exact, and accepted from
both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path as File
from typing import Any, cast

import pytest
import torch

from outpace.core.claim import Drawn
from outpace.core.contracts import Context, Parts, Plan, Recipe, Step
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.drafters.compose.fusion import FusedDrafter
from outpace.indexes import store
from outpace.indexes.suffix_array.array import SuffixArray
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.eagle.kind import EagleModel
from outpace.models.heads.head_model import HeadModel
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables, transformers_models, wide_tables
from outpace.proof.option_values import choices
from outpace.proof.suite import CAUGHT
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.heads.eagle2 import eagle2
from outpace.recipes.training_free.rasd import rasd
from outpace.recipes.training_free.reader import reader
from outpace.sampling.target_probs import LazyTargetProbs
from tests.tiers import slow

BOTH = pytest.mark.parametrize("recipe", [rasd, reader], ids=lambda recipe: recipe.name)
HEAD_DEPTH = 6
Path = tuple[int, ...]


@cache
def models(kind: str) -> Models:
    """A vocabulary of which the head's trees have a part only, so that retrieval adds to them."""
    return {"wide": wide_tables, "transformers": lambda: transformers_models(vocab=12)}[kind]()


@cache
def head(kind: str) -> EagleModel:
    """An untrained head."""
    return EagleModel(HeadModel(untrained_eagle(cast(Any, models(kind).target), seed=1)))


def corpus(kind: str, folder: File) -> str:
    store.save(SuffixArray.build(models(kind).texts), folder / "corpus")
    return str(folder / "corpus")


def paths(tree: TokenTree, row: int) -> list[Path]:
    tokens, nodes = tree.tokens.tolist(), tree.forest.nodes[row][1:]
    return [tuple(tokens[each] for each in tree.forest.path(node)[1:]) for node in nodes]


def spied(parts: Parts, change: Callable[[TokenTree], TokenTree] = lambda tree: tree) -> list[TokenTree]:
    """The head's own trees, recorded as they are drafted; `change` is applied to each."""
    found: list[TokenTree] = []
    drafter = parts.drafter
    assert isinstance(drafter, FusedDrafter)
    growth = drafter._growth

    def recorded(ctx: Context, plan: Plan, read: Any) -> TokenTree:
        found.append(change(growth(ctx, plan, read)))
        return found[-1]

    drafter._growth = recorded
    return found


def counted(parts: Parts, accepted: Counter[str]) -> Parts:
    """The same parts, which count accepted draft tokens by the drafter that proposed them."""
    trees, observe = spied(parts), parts.drafter.observe

    def count(step: Step) -> None:
        for row, leaf in enumerate(step.verdict.leaf if any(step.generated) else ()):
            forest, tokens = step.draft.tree.forest, step.draft.tree.tokens.tolist()
            path = tuple(tokens[node] for node in forest.path(leaf)[1:])
            own = set(paths(trees[-1], row)) if path else set[Path]()
            accepted.update("head" if path[:end] in own else "found" for end in range(1, len(path) + 1))
        observe(step)

    parts.drafter.observe = count
    return parts


def cases(kind: str) -> list[Case]:
    """Texts with one to three likely tokens at a time."""
    top_k = 2 if kind == "transformers" else 0
    text = tuple(models(kind).texts[0])
    return [
        Case(text[:5], SamplingParams(1.0, top_k=top_k, max_tokens=5)),
        Case((*text[:3], *text[:3]), SamplingParams(0.7, top_k=top_k, max_tokens=4, stop=(text[4],))),
        Case(models(kind).greedy_text[:4], SamplingParams(0.0, max_tokens=8)),
    ]


def error(kind: str, build: Callable[[], Parts]) -> float:
    return largest_error(enumerate_distributions(build, cases(kind)), models(kind).logits, cases(kind))


@BOTH
@pytest.mark.parametrize("kind", ["wide", slow("transformers")])
def test_the_distribution_is_the_targets_and_both_drafts_are_accepted(
    recipe: Recipe, kind: str, tmp_path: File
) -> None:
    index, accepted = corpus(kind, tmp_path), Counter[str]()

    def build() -> Parts:
        options = {"index": index, "min_ngram": 1, "max_cached_tokens": 0}
        return counted(recipe.build(models(kind).target, head=head(kind), **options), accepted)

    assert error(kind, build) < models(kind).bound
    assert min(accepted["head"], accepted["found"]) > 20, accepted


@BOTH
def test_the_proof_catches_tokens_of_the_head_that_are_claimed_as_drawn(recipe: Recipe) -> None:
    models = tables()
    opened = EagleModel(HeadModel(untrained_eagle(cast(Any, models.target), seed=1)))

    def claimed(tree: TokenTree) -> TokenTree:
        """The tree, which states that the children of roots were drawn uniformly."""
        num_rows = tree.forest.num_rows
        rows = tuple([each if each < num_rows else -1 for each in tree.forest.parents])
        q = torch.full((num_rows, models.target.vocab), 1 / models.target.vocab, dtype=torch.float64)
        return replace(tree, claim=Drawn(q, rows, (False,) * num_rows))

    def build(change: Callable[[TokenTree], TokenTree]) -> Parts:
        parts = recipe.build(models.target, head=opened, max_cached_tokens=0)
        spied(parts, change)
        parts.drafter.claims = (Drawn,)
        return parts

    requests = [Case((0, 1, 2, 0, 1), SamplingParams(1.0, max_tokens=2))]
    for change, wrong in ((claimed, True), (lambda tree: tree, False)):
        found = enumerate_distributions(lambda change=change: build(change), requests, replays=0)
        assert (largest_error(found, models.logits, requests) > (CAUGHT if wrong else BOUND)) == wrong


@BOTH
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_plain_decodings_and_the_head_drafts_as_in_eagle2(
    recipe: Recipe, temperature: float, tmp_path: File
) -> None:
    """Over requests that follow one another in the same slots, with accepted tokens that were found."""
    target, accepted = models("transformers").target, Counter[str]()
    parts = recipe.build(
        target, head=head("transformers"), index=corpus("transformers", tmp_path), min_ngram=1
    )
    prompts = [models("transformers").texts[0][:6], [3], models("transformers").texts[1]]
    settings = [SamplingParams(temperature, max_tokens=14, seed=seed) for seed in range(3)]
    trees, steps = spied(counted(parts, accepted)), list[Step]()
    plain = texts(autoregressive.build(target), prompts, settings)
    for _ in range(2):
        assert texts(parts, prompts, settings, observe=steps.append) == plain
    assert accepted["head"] and accepted["found"]
    steps = [step for step in steps if any(step.generated) and step.draft.forwards]
    assert len(steps) == len(trees) and max(step.draft.forwards for step in steps) == HEAD_DEPTH
    for step, tree in list(zip(steps, trees, strict=True))[::3]:
        for row, text in enumerate(step.ctx.tokens):
            limit = SamplingParams(max_tokens=step.ctx.max_draft_depth[row] + 1)
            session = Session(
                eagle2.build(target, head=head("transformers")), [text], [limit], LazyTargetProbs
            )
            alone = next(each for each in session.steps() if any(each.generated)).draft.tree
            assert sorted(paths(tree, row)) == sorted(paths(alone, 0))


@pytest.mark.slow
def test_rasd_keeps_what_begins_with_the_heads_most_probable_tokens(tmp_path: File) -> None:
    parts = rasd.build(
        models("wide").target,
        head=head("wide"),
        index=corpus("wide", tmp_path),
        num_first_tokens=1,
        nodes=8,
        min_ngram=1,
    )
    trees, steps, most = spied(parts), list[Step](), 0
    texts(parts, [[token] for token in range(20)], [SamplingParams(max_tokens=12)] * 20, observe=steps.append)
    for step, tree in zip([step for step in steps if step.draft.forwards], trees, strict=True):
        for row in range(len(step.ctx.slots)):
            own = paths(tree, row)
            found = set(paths(step.draft.tree, row)) - set(own)
            assert {path[0] for path in found} <= {path[0] for path in own[:1]} and len(found) <= 8
            most = max(most, len(found))
    assert most > 2


def test_reader_keeps_the_nodes_most_likely_to_be_reached_of_both(tmp_path: File) -> None:
    parts = reader.build(
        models("wide").target, head=head("wide"), index=corpus("wide", tmp_path), nodes=30, min_ngram=1
    )
    trees, steps = spied(parts), list[Step]()
    texts(parts, [[token] for token in range(20)], [SamplingParams(max_tokens=12)] * 20, observe=steps.append)
    mixed = 0
    for step, tree in zip([step for step in steps if step.draft.forwards], trees, strict=True):
        for row in range(len(step.ctx.slots)):
            own, found = set(paths(tree, row)), set(paths(step.draft.tree, row))
            assert len(found) <= 30
            mixed += len(found) == 30 and bool(found - own) and bool(own - found)
    assert mixed > 20


@BOTH
def test_exactly_one_drafter_is_given(recipe: Recipe) -> None:
    target, draft, opened = models("wide").target, models("wide").drafts[0], head("wide")
    for options in ({}, {"draft": draft, "head": opened}):
        with pytest.raises(ValueError, match="give one of them"):
            recipe.build(target, **options)
    with pytest.raises(ValueError, match="sampled is an option for draft models"):
        recipe.build(target, head=opened, sampled=True)
    assert recipe.build(target, head=opened).drafter.claims == ()


@BOTH
def test_an_audit_proves_each_drafter(recipe: Recipe) -> None:
    small = tables()
    found = [
        (each.get("draft"), "head" in each, each.get("sampled")) for each in choices(recipe, small, [(2,)])
    ]
    draft = small.drafts[0]
    assert isinstance(draft, TableTarget)
    assert found == [(draft, False, None), (None, True, None), (draft, False, True)]
