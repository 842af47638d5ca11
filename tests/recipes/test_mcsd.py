"""Multi-candidate decoding: more candidates are accepted more often."""

from __future__ import annotations

import pytest

from outpace.law.acceptance import expected_accepted
from outpace.models.toy import Table
from outpace.recipes.mcsd import mcsd
from outpace.recipes.speculative_sampling import speculative_sampling


def accepted(seed: int, **options: object) -> float:
    target, draft = Table(4, seed=seed, order=2), Table(4, seed=seed + 100, order=2)
    widths = options.get("widths", (2,))
    assert isinstance(widths, tuple)
    return expected_accepted(lambda: mcsd.build(target, draft=draft, **options), len(widths))


def test_without_replacement_accepts_at_least_as_much_on_average() -> None:
    pairs = [(accepted(seed, widths=(2,)), accepted(seed, widths=(2,), replace=True)) for seed in range(25)]
    without, independent = (sum(side) for side in zip(*pairs, strict=True))
    assert without > independent


@pytest.mark.parametrize("seed", range(3))
def test_one_candidate_a_level_is_speculative_sampling(seed: int) -> None:
    target, draft = Table(4, seed=seed, order=2), Table(4, seed=seed + 100, order=2)
    chain = expected_accepted(lambda: speculative_sampling.build(target, draft=draft, depth=2), 2)
    assert accepted(seed, widths=(1, 1)) == pytest.approx(chain, abs=1e-12)


def test_every_token_as_a_candidate_is_always_accepted() -> None:
    assert accepted(0, widths=(4,)) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_naive_rule_accepts_less(seed: int) -> None:
    assert accepted(seed, widths=(2,), naive=True) < accepted(seed, widths=(2,))


def test_a_tree_of_any_shape() -> None:
    assert accepted(1, parents=(0, 0)) == pytest.approx(accepted(1, widths=(2,)), abs=1e-12)
