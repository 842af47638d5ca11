"""Traversal: the same trees as multi-candidate decoding, more of them kept."""

from __future__ import annotations

import pytest

from outpace.core.contracts import Recipe
from outpace.law.acceptance import expected_accepted
from outpace.models.toy import Table
from outpace.recipes.block_verification import block_verification
from outpace.recipes.mcsd import mcsd
from outpace.recipes.traversal import traversal


def accepted(recipe: Recipe, seed: int, **options: object) -> float:
    target, draft = Table(3, seed=seed, order=2), Table(3, seed=seed + 100, order=2)
    return expected_accepted(lambda: recipe.build(target, draft=draft, **options), 2)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_more_is_kept_than_by_rejection_from_the_root_down(seed: int, replace: bool) -> None:
    options = {"widths": (2, 1), "replace": replace}
    assert accepted(traversal, seed, **options) > accepted(mcsd, seed, **options)


@pytest.mark.parametrize("seed", range(3))
def test_a_chain_is_block_verification(seed: int) -> None:
    chain = accepted(traversal, seed, widths=(1, 1))
    assert chain == pytest.approx(accepted(block_verification, seed, depth=2), abs=1e-12)


def test_a_tree_of_any_shape() -> None:
    assert accepted(traversal, 1, parents=(0, 0, 1)) == pytest.approx(
        accepted(traversal, 1, parents=(0, 0, 1), widths=(4,)), abs=1e-12
    )
    assert accepted(traversal, 1, parents=(0, 0, 1, 2)) == pytest.approx(
        accepted(traversal, 1, widths=(2, 1)), abs=1e-12
    )


def test_the_default_tree_is_binary() -> None:
    assert traversal.options["widths"].default == (2, 2, 2, 2)
