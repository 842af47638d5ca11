"""The test of sampled tokens passes draws from the distribution and fails others."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chi2, kstest

from outpace.proof.sampled_test import CELLS, g_test, uniform_values

GENERATOR = torch.Generator().manual_seed(1)


def distributions(count: int, spread: float = 2.0) -> torch.Tensor:
    return (torch.randn(count, 50, generator=GENERATOR) * spread).softmax(-1)


def test_draws_from_the_distribution_give_uniform_values() -> None:
    p = distributions(5_000)
    tokens = torch.multinomial(p, 1, generator=GENERATOR)[:, 0].tolist()
    values = uniform_values(p, tokens, GENERATOR)
    assert kstest(values, "uniform").pvalue > 1e-6
    assert g_test(values).holds


@pytest.mark.parametrize("wrong", ["argmax", "colder", "flatter"])
def test_draws_from_another_distribution_are_found(wrong: str) -> None:
    p = distributions(5_000)
    if wrong == "argmax":
        tokens = p.argmax(-1)
    else:
        q = p ** (1.3 if wrong == "colder" else 0.7)
        tokens = torch.multinomial(q / q.sum(-1, True), 1, generator=GENERATOR)[:, 0]
    assert not g_test(uniform_values(p, tokens.tolist(), GENERATOR)).holds


def test_the_p_value_is_that_of_chi_square() -> None:
    found = g_test([(index + 0.5) / 400 for index in range(400)] + [0.01] * 60)
    assert found.p_value == pytest.approx(chi2.sf(found.statistic, CELLS - 1), rel=1e-9)


def test_the_stated_power_is_met() -> None:
    # a distribution that moves the stated mass from one half of the cells to the other is found nearly always
    count, found = 4_000, 0
    off = g_test([0.5] * 320 + [0.1] * (count - 320)).detects
    for _ in range(60):
        values = torch.rand(count, generator=GENERATOR, dtype=torch.float64)
        moved = (torch.rand(count, generator=GENERATOR) < 2 * off) & (values > 0.5)
        found += not g_test(torch.where(moved, values - 0.5, values).tolist()).holds
    assert found >= 55


def test_too_few_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        g_test([0.5] * 100)
