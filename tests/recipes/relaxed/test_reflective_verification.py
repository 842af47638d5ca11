"""Reflective verification: the output has the distribution of its steps, and mistakes are caught."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import outpace
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, SamplingParams, Step, StepReference, TargetProbs
from outpace.core.noise import Noise
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.engine.engine import Engine
from outpace.models.forward.row_inputs import RowInputs
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableCache, TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import Case, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables, transformers_models
from outpace.proof.reference import promised
from outpace.proof.suite import CAUGHT, exact_limit, prove_default
from outpace.recipes import RecipeError, configure, get
from outpace.recipes._option_kinds import FunctionOpener
from outpace.recipes.relaxed.reflective_verification import fused as verification
from outpace.recipes.relaxed.reflective_verification.copied_draft import (
    ReflectiveSteps,
    copied_nodes,
    with_copies,
)
from outpace.recipes.relaxed.reflective_verification.fused import Fused, fused
from outpace.recipes.relaxed.reflective_verification.recipe import reflective_verification
from outpace.recipes.relaxed.reflective_verification.reflection import USUAL, Reflection
from outpace.verifiers.match import Match
from tests.tiers import only

CASES = [
    Case((0, 1, 2, 0), SamplingParams(1.0, max_tokens=4)),
    Case((2,), SamplingParams(0.7, max_tokens=4, stop=(1,), repetition_penalty=1.5)),
    Case((1, 0, 2), SamplingParams(1.6, max_tokens=3, top_k=2)),
    Case((1, 0), SamplingParams(0.0, max_tokens=8)),
]
WORDS = (2, 0)  # the reflection
WEIGHT = 0.5


@cache
def models(kind: str) -> Models:
    return tables() if kind == "table" else transformers_models()


def build(kind: str = "table", **options: Any) -> Parts:
    of = models(kind)
    given: dict[str, Any] = {"weight": WEIGHT, "depth": 3, "reflection": Reflection("", WORDS)} | options
    return reflective_verification.build(of.target, draft=of.drafts[0], **given)


def error(make: Callable[[], Parts], stated: Parts | None, kind: str = "table") -> float:
    """The largest difference from the distribution that `stated` has; None: from the target's."""
    cases = CASES if kind == "table" else CASES[1:]
    found = enumerate_distributions(make, cases)
    assert found.counts.deepest >= 2
    own = promised(stated.reference if stated else None, models(kind).logits)
    return largest_error(found, own, cases)


@pytest.mark.parametrize("kind", only(["table"], ["table", "transformers"]))
def test_the_output_has_the_distribution_of_its_steps_and_not_the_target_s(kind: str) -> None:
    assert isinstance(build(kind).reference, StepReference)
    assert error(lambda: build(kind), build(kind), kind) < 1e-12
    assert error(lambda: build(kind), None, kind) > 0.01
    for other in (1.0,) if kind == "table" else ():
        assert error(lambda other=other: build(weight=other), build(weight=other)) < 1e-12
        assert error(lambda: build(), build(weight=other)) > CAUGHT


def test_the_recipe_is_proven_and_its_exact_limit_is_exact() -> None:
    proof = prove_default(get("reflective-verification"), tables(), 200)
    assert proof.verdict == "as stated" and proof.loss is not None and proof.loss > 0.05
    limit = exact_limit(get("reflective-verification"), tables(), 200)
    assert limit.verdict == "exact" and limit.accepted


@pytest.mark.slow
def test_weight_0_is_the_rule_that_it_changes() -> None:
    of = models("transformers")
    base = Parts(of.target, DraftModel(of.drafts[0], sampled=False), Match(), Fixed(3))
    params = [SamplingParams(0.8, max_tokens=24, seed=row) for row in range(3)]
    prompts = [(0, 1, 2, 0), (2,), (1, 0, 3)]
    assert texts(build("transformers", weight=0.0), prompts, params) == texts(base, prompts, params)
    # and with both readings, of which one counts, the output has the target's distribution
    assert error(lambda: replace(build(), verifier=Fused(0.0, len(WORDS)), reference=None), None) < 1e-12


def test_what_is_read_after_a_draft_is_not_drafted_and_leaves_the_cache() -> None:
    tree = TokenTree(torch.tensor([5, 6, 7, 8, 9]), Forest.chain((2, 1)))
    read = with_copies(tree, WORDS)
    assert read.token_list() == [5, 6, 7, 8, 9, 2, 0, 7, 8, 2, 0, 9]
    assert [read.token_list()[node] for node in read.forest.path(8)] == [5, 7, 8, 2, 0, 7, 8]
    assert [read.token_list()[node] for node in read.forest.path(11)] == [6, 9, 2, 0, 9]
    steps = list[Step]()
    engine = Engine.of(build(), [torch.tensor((0, 1, 2))], [SamplingParams(1.0, max_tokens=12, seed=1)])
    for step in engine.steps():
        steps.append(step)
        if engine.session.rows:
            assert engine.session.cache.lengths[0] == engine.session.request(0).length - 1
    assert max(len(step.draft.tree) for step in steps) == 4  # the root and three tokens


def test_a_target_that_reads_little_gets_shorter_drafts() -> None:
    target, draft = TableTarget(3, seed=1), TableTarget(3, seed=2)
    target.max_length = draft.max_length = 12
    parts = reflective_verification.build(
        target, draft=draft, weight=WEIGHT, depth=4, reflection=Reflection("", WORDS)
    )
    score, longest = target.score, list[int]()

    def noted(tree: TokenTree, slots: Sequence[int], cache: TableCache, *args: Any, **more: Any) -> Any:
        gap = sum(map(len, more.get("gap") or ()))
        longest.append(cache.lengths[slots[0]] + gap + len(tree))
        return score(tree, slots, cache, *args, **more)

    target.score = noted
    [text] = texts(parts, [(0, 1)], [SamplingParams(max_tokens=10)])
    assert len(text) == 10 and max(longest) == 12


class FromCopy(Fused):
    """Mistake: the token after a whole accepted draft is that of both readings."""

    def after(
        self,
        leaf: Sequence[int],
        rows: Sequence[int],
        target_probs: TargetProbs,
        both: TargetProbs,
        noise: Noise,
    ) -> list[int]:
        return both.choose([leaf[row] for row in rows], noise) if rows else []


class Blind(ReflectiveSteps):
    """Mistake: the copy does not see the reflection."""

    def copied(self, tree: TokenTree) -> TokenTree:
        read, first = super().copied(tree), len(tree)
        parents = list(read.forest.parents)
        for nodes in tree.forest.nodes:
            if len(nodes) > 1:
                parents[first + len(WORDS)] = nodes[-1]
                first += len(WORDS) + len(nodes) - 1
        return TokenTree(read.tokens, Forest.of(parents, tree.forest.num_rows))


class Kept(TableCache):
    """Mistake: the reflection stays where a text goes on."""

    def commit(self, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        super().commit(tree, leaf, slots)
        target = models("table").target
        assert isinstance(target, TableTarget)
        for slot in slots:
            self.keep(slot, WORDS, target)
            self.lengths[slot] -= len(WORDS)


class Keeping(TableTarget):
    def open(self, slots: int, capacity: int) -> TableCache:
        return Kept(slots, capacity)


def test_a_mistake_is_caught() -> None:
    from_copy = replace(build(), verifier=FromCopy(WEIGHT, len(WORDS)))
    assert error(lambda: from_copy, build()) > 10 * CAUGHT
    blind = replace(build(), schedule=Blind(WORDS))
    assert error(lambda: blind, build()) > 10 * CAUGHT
    plain = models("table").target
    assert isinstance(plain, TableTarget)
    target = Keeping(plain.vocab)
    target.logits = plain.logits
    kept = replace(build(), target=target)
    assert error(lambda: kept, build()) > 10 * CAUGHT


def test_logits_of_the_copy_that_are_one_token_off_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def early(forest: Forest, num_reflection: int) -> list[int]:
        return [at - (at != node) for node, at in enumerate(copied_nodes(forest, num_reflection))]

    monkeypatch.setattr(verification, "copied_nodes", early)
    assert error(lambda: build(), build()) > 10 * CAUGHT


@pytest.mark.slow
def test_a_copy_at_the_positions_of_the_draft_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    row_of = HFTarget._row

    def at_the_drafts_positions(self: HFTarget, row: Any, slot: int, gap: int, cache: Any) -> RowInputs:
        inputs, size = row_of(self, row, slot, gap, cache), len(row.nodes)
        if self is not models("transformers").target or size < len(WORDS) + 3:
            return inputs
        depths, base = torch.arange(size), inputs.base
        depths[(size - 1 + len(WORDS)) // 2 + 1 :] -= (size - 1 + len(WORDS)) // 2
        visible = torch.ones(size, size, dtype=torch.bool).tril()
        return RowInputs(slot, inputs.start, inputs.end, base, depths, visible, base + size - 1)

    monkeypatch.setattr(HFTarget, "_row", at_the_drafts_positions)
    assert error(lambda: build("transformers"), build("transformers"), "transformers") > CAUGHT


def test_logits_computed_by_hand() -> None:
    own, copied = torch.tensor([[1.0, -math.inf, 2.0]]), torch.tensor([[3.0, 1.0, 0.0]])
    assert fused(own, copied, 0.25).tolist() == [[1.5, -math.inf, 1.5]]
    assert fused(own, copied, 1.0).tolist() == [[3.0, -math.inf, 0.0]]


def test_with_the_package_s_models_statistics_count_the_draft_alone() -> None:
    model, options = outpace.load("zoo:target"), {"draft": "zoo:draft", "temperature": 0, "max_tokens": 12}
    [found] = outpace.generate(model, "def add(a, b):", method="reflective-verification", depth=3, **options)
    counts = found.statistics
    assert counts.num_draft_tokens <= 3 * counts.num_steps and "second reading" in str(found.reference)
    assert counts.num_tokens == counts.num_accepted_draft_tokens + counts.num_steps


def test_bad_values_are_refused_in_a_sentence() -> None:
    of = models("table")

    class Words:
        def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
            return {"input_ids": [len(word) for word in text.split()]}

    def opened(value: object, tokenizer: Any = None, limit: int | None = None) -> Reflection:
        target = TableTarget(3)
        target.max_length = limit
        opener = FunctionOpener(lambda name: of.drafts[0], tokenizer)
        given = {"draft": "any"} if value is None else {"draft": "any", "reflection": value}
        return configure(get("reflective-verification"), target, given, opener)["reflection"]

    assert opened("a bb", Words()).tokens == (1, 2) and opened("[2, 1]").tokens == opened([2, 1]).tokens
    for value, tokenizer, limit, said in (
        ("", Words(), None, "the reflection is empty: give"),
        ([], None, None, "the reflection is empty: give"),
        ("a bb ccc", Words(), None, "the token id 3 and the target ids up to 2"),
        ([1, "a"], None, None, "are whole numbers"),
        (7, None, None, "a text or a list of token ids, not a int"),
        ("a", None, None, "needs the target's tokenizer"),
        (None, None, None, "needs the target's tokenizer"),
        ([1, 2], None, 4, "has 2 tokens and the target reads at most 4"),
    ):
        with pytest.raises(RecipeError, match=said):
            opened(value, tokenizer, limit)
    for options, said in (
        ({"weight": 1.5}, "weight is 1.5: give"),
        ({"weight": math.nan}, "weight is nan: give"),
        ({"reflection": USUAL}, "a recipe does not know the tokenizer"),
        ({"reflection": Reflection("", ())}, "the reflection is empty"),
    ):
        with pytest.raises(ValueError, match=said):
            build(**options)
