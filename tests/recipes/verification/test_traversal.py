"""Traversal verification accepts more of the same trees than multi-candidate decoding."""

from __future__ import annotations

import pytest
import torch

from outpace.core.contracts import Recipe
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.expected_acceptance import expected_accepted
from outpace.proof.reference import table_logits
from outpace.recipes.verification.block_verification import block_verification
from outpace.recipes.verification.mcsd import mcsd
from outpace.recipes.verification.traversal import traversal
from outpace.sampling.target_probs import LazyTargetProbs


def accepted(recipe: Recipe, seed: int, **options: object) -> float:
    target, draft = TableTarget(3, seed=seed, order=2), TableTarget(3, seed=seed + 100, order=2)
    return expected_accepted(lambda: recipe.build(target, draft=draft, **options), 2)


@pytest.mark.slow
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_more_is_accepted_than_by_rejection_from_the_root_down(seed: int, replace: bool) -> None:
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


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    ("vocab", "widths"),
    [
        (3, (2, 1)),
        (2, (2, 2)),
        pytest.param(3, (1, 2), marks=pytest.mark.slow),
        pytest.param(2, (2, 1, 1), marks=pytest.mark.slow),
    ],
)
def test_distribution_is_the_targets_on_wide_and_deep_trees(
    vocab: int, widths: tuple[int, ...], replace: bool
) -> None:
    # after this draft a node may be refused a child and still have some weight
    target, draft = TableTarget(vocab, seed=1), TableTarget(vocab, seed=3, order=1)
    cases = [Case((0, 1, 0, 0, 1), SamplingParams(temperature=0.7, max_tokens=len(widths) + 1))]
    found = enumerate_distributions(
        lambda: traversal.build(target, draft=draft, widths=widths, replace=replace), cases
    )
    assert largest_error(found, table_logits(target.logits, target.state), cases) < BOUND


def test_at_temperature_zero_nothing_is_gained() -> None:
    def generated(recipe: Recipe) -> list[list[int]]:
        target, draft = TableTarget(4, seed=1), TableTarget(4, seed=2, order=2)
        sampling = [SamplingParams(temperature=0.0, max_tokens=40)]
        parts = recipe.build(target, draft=draft, widths=(2, 2, 2))
        return [
            step.generated[0]
            for step in Session(parts, [torch.tensor([0])], sampling, LazyTargetProbs).steps()
        ]

    found = generated(traversal)
    assert found == generated(mcsd) and {len(each) for each in found} > {1, 2}
