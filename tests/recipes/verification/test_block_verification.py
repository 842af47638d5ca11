"""Block verification accepts more of the same drafts than speculative sampling."""

from __future__ import annotations

import pytest

from outpace.core.contracts import Recipe
from outpace.core.sampling_params import SamplingParams
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.expected_acceptance import expected_accepted
from outpace.proof.reference import table_logits
from outpace.recipes.base.speculative_sampling import speculative_sampling
from outpace.recipes.verification.block_verification import block_verification


def accepted(recipe: Recipe, vocab: int, seed: int, depth: int, **options: object) -> float:
    target, draft = TableTarget(vocab, seed=seed), TableTarget(vocab, seed=seed + 100, order=2)
    return expected_accepted(lambda: recipe.build(target, draft=draft, depth=depth, **options), depth)


@pytest.mark.parametrize("confidence", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_more_is_accepted_than_by_speculative_sampling(seed: int, confidence: float) -> None:
    block = accepted(block_verification, 3, seed, 2, confidence_threshold=confidence)
    assert block > accepted(speculative_sampling, 3, seed, 2, confidence_threshold=confidence)


@pytest.mark.slow
def test_a_longer_draft_gains_more() -> None:
    def gain(depth: int) -> float:
        recipes = block_verification, speculative_sampling
        block, tokens = (sum(accepted(each, 2, seed, depth) for seed in range(6)) for each in recipes)
        return block - tokens

    gains = [gain(depth) for depth in (1, 2, 4)]
    assert gains[0] == pytest.approx(0, abs=1e-12)
    assert gains == sorted(gains) and gains[1] > 0


def test_the_default_block_is_eight_tokens() -> None:
    assert block_verification.options["depth"].default == 8


def test_distribution_is_the_targets_where_blocks_of_different_lengths_are_judged_together() -> None:
    target, draft = TableTarget(3, seed=1), TableTarget(3, seed=2, order=2)
    cases = [
        Case((0, 1, 2), SamplingParams(temperature=1.0, max_tokens=4)),
        Case((2,), SamplingParams(temperature=0.7, max_tokens=3)),
        Case((1, 1), SamplingParams(temperature=1.0, max_tokens=2)),
    ]
    found = enumerate_distributions(lambda: block_verification.build(target, draft=draft), cases)
    assert largest_error(found, table_logits(target.logits, target.state), cases) < BOUND
