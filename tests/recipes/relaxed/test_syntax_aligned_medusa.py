"""Whole fragments: the output has the distribution that its steps state, and a wrong cut is caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.models.fragment_token import KEY
from outpace.models.heads.medusa.head import untrained_medusa
from outpace.models.heads.medusa.kind import MedusaModel
from outpace.models.heads.position_model import PositionModel
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import Case, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables, transformers_models
from outpace.proof.reference import promised
from outpace.proof.suite import CAUGHT
from outpace.recipes.relaxed.syntax_aligned_medusa.recipe import syntax_aligned_medusa
from outpace.recipes.relaxed.syntax_aligned_medusa.whole_fragments import WholeFragments
from outpace.verifiers.typical import Typical

FRAGMENT = 2
CASES = [
    Case((0, 1, 2, 0), SamplingParams(1.0, max_tokens=5)),
    Case((2,), SamplingParams(0.7, max_tokens=3, stop=(0,))),
    Case((1, 0), SamplingParams(0.0, max_tokens=4)),
]


@cache
def models(kind: str) -> Models:
    return tables() if kind == "table" else transformers_models()


def parts_of(kind: str, **options: Any) -> Parts:
    head = MedusaModel(PositionModel(untrained_medusa(models(kind).target, seed=1)))
    given = {"fragment": FRAGMENT, "num_nodes": 39, "depth": 3, "epsilon": 0.05, "delta": 0.1} | options
    return syntax_aligned_medusa.build(models(kind).target, head=head, **given)


def error(parts: Parts, reference: Any, kind: str = "table") -> float:
    found = enumerate_distributions(lambda: parts, CASES)
    assert found.counts.accepted
    return largest_error(found, promised(reference, models(kind).logits), CASES)


@pytest.mark.parametrize("kind", ["table", pytest.param("transformers", marks=pytest.mark.slow)])
def test_the_output_has_the_distribution_of_its_steps(kind: str) -> None:
    parts = parts_of(kind)
    assert error(parts, parts.reference, kind) < 1e-12


class Uncut(Typical):
    """Mistake: all that typical acceptance takes stays."""

    def __init__(self, epsilon: float, delta: float, fragment: int) -> None:
        super().__init__(epsilon, delta)


class ToTheFirst(WholeFragments):
    """Mistake: cut behind the first fragment."""

    def kept(self, tree: TokenTree, leaves: Sequence[int]) -> list[int]:
        tokens, ends = tree.token_list(), list[int]()
        for row, leaf in enumerate(leaves):
            whole = [node for node in tree.forest.path(leaf)[1:] if tokens[node] == FRAGMENT]
            ends.append(whole[0] if whole else row)
        return ends


class OneMore(WholeFragments):
    """Mistake: the token behind the last fragment stays too."""

    def kept(self, tree: TokenTree, leaves: Sequence[int]) -> list[int]:
        ends, forest = super().kept(tree, leaves), tree.forest
        paths = [list(forest.path(leaf)) for leaf in leaves]
        return [path[min(path.index(end) + 1, len(path) - 1)] for end, path in zip(ends, paths, strict=True)]


@pytest.mark.parametrize("mistake", [Uncut, ToTheFirst, OneMore])
def test_a_mistake_in_the_cut_is_caught(mistake: type[Any]) -> None:
    parts = parts_of("table")
    wrong = replace(parts, verifier=mistake(0.05, 0.1, FRAGMENT))
    assert error(wrong, parts.reference) > CAUGHT


def test_a_step_ends_with_a_fragment_and_a_token_of_the_target() -> None:
    steps, parts = list[Any](), parts_of("transformers", num_nodes=20)
    prompts = [[token, 1, 2] for token in range(3)] * 4
    params = [SamplingParams(1.0, max_tokens=20, seed=seed) for seed in range(len(prompts))]
    texts(parts, prompts, params, observe=steps.append)
    kept = [each[:-1] for step in steps for each in step.generated if len(each) > 1]
    ended = [each for each in kept if each[-1] == FRAGMENT]
    # the last step of a text may be cut by its length
    assert len(ended) >= 5 and len(kept) - len(ended) <= len(prompts)


def test_a_token_that_is_not_named_is_said() -> None:
    with pytest.warns(
        UserWarning, match=f"has no {KEY}, so hardly any draft may be accepted: train a target"
    ):
        parts_of("table", fragment=None)
    with pytest.raises(ValueError, match="fragment is 3, but the tokens are 0 to 2: give one of these"):
        parts_of("table", fragment=3)
