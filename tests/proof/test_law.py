"""Every recipe that is found has the distribution it promises, without a line written for it here."""

from __future__ import annotations

from functools import cache

import pytest

from outpace.core.contracts import Guarantee
from outpace.proof.enumeration import BOUND
from outpace.proof.suite import Models, prove, prove_wrong, tables, transformers_models
from outpace.recipes import find

MODELS = {
    "table": tables,
    "transformers": transformers_models,
    "transformers-window": lambda: transformers_models(window=3),
}


@cache
def models(kind: str) -> Models:
    return MODELS[kind]()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", sorted(find()))
def test_distribution_is_the_one_promised(name: str, kind: str) -> None:
    recipe = find()[name]
    assert recipe.guarantee is Guarantee.EXACT
    proofs = list(prove(recipe, models(kind)))
    assert {0.0, 0.7, 1.0} <= {temperature for proof in proofs for temperature in proof.temperatures}
    assert {1, 256} <= {proof.batch for proof in proofs}
    assert any(proof.settings for proof in proofs) and any(proof.predicted for proof in proofs)
    for proof in proofs:
        assert proof.outcomes > 10
        assert proof.holds, f"{proof.recipe} {proof.options} {proof.settings}: {proof.error:.2e}"


@cache
def wrong_errors() -> dict[str, float]:
    return prove_wrong()


def test_at_least_eight_known_mistakes_are_tried() -> None:
    assert len(wrong_errors()) >= 8


@pytest.mark.parametrize("name", sorted(wrong_errors()))
def test_known_mistake_is_caught(name: str) -> None:
    assert wrong_errors()[name] > 1e6 * BOUND
