"""SpecTr: several sequences under one acceptance rule, exact at any valid scale, a fixed share of the best at
least."""

from __future__ import annotations

import pytest
import torch

from outpace.bench.measure.best_coupling import Draws, acceptance_bound
from outpace.core.sampling_params import SamplingParams
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.expected_acceptance import expected_accepted
from outpace.proof.reference import table_logits
from outpace.recipes.base.speculative_sampling import speculative_sampling
from outpace.recipes.verification.spectr_kseq import spectr_kseq


def flat(*distribution: float) -> TableTarget:
    model = TableTarget(len(distribution), order=1)
    model.logits = (
        torch.tensor(distribution, dtype=torch.float64).log().expand(2 * len(distribution), -1).contiguous()
    )
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "tolerance", [0.0, 0.05, 1.0]
)  # from the smallest valid scale to one for each sequence
@pytest.mark.parametrize("widths", [(2, 1), (3,)])
def test_distribution_is_the_targets_when_sequences_run_out_along_the_path(
    widths: tuple[int, ...], tolerance: float
) -> None:
    target, draft = TableTarget(3, seed=1), TableTarget(3, seed=2, order=2)
    cases = [
        Case((0, 1, 2, 0, 1), SamplingParams(temperature=0.7, max_tokens=3)),
        Case((2, 2), SamplingParams(temperature=1.0, max_tokens=2)),
        Case((1,), SamplingParams(temperature=0.0, max_tokens=3)),
    ]
    found = enumerate_distributions(
        lambda: spectr_kseq.build(target, draft=draft, widths=widths, tolerance=tolerance), cases
    )
    assert largest_error(found, table_logits(target.logits, target.state), cases) < BOUND


@pytest.mark.parametrize("seed", range(3))
def test_one_sequence_is_speculative_sampling(seed: int) -> None:
    target, draft = TableTarget(4, seed=seed, order=2), TableTarget(4, seed=seed + 100, order=2)
    chain = expected_accepted(lambda: speculative_sampling.build(target, draft=draft, depth=2), 2)
    found = expected_accepted(lambda: spectr_kseq.build(target, draft=draft, widths=(1, 1)), 2)
    assert found == pytest.approx(chain, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 3])
def test_accepts_a_fixed_share_of_the_most_that_is_possible(k: int) -> None:
    for seed in range(18 - 4 * k):
        target, draft = TableTarget(4, seed=seed, order=1), TableTarget(4, seed=seed + 100, order=1)
        p, q = (model.logits[model.state((0,))].softmax(0) for model in (target, draft))
        most = acceptance_bound(p, [Draws(q, k, True)])
        found = expected_accepted(
            lambda t=target, d=draft: spectr_kseq.build(t, draft=d, widths=(k,), tolerance=0.0), 1
        )
        assert (1 - (1 - 1 / k) ** k) * most - 1e-12 <= found <= most + 1e-12


def test_two_draws_of_the_worked_example() -> None:
    target, draft = flat(0.3, 0.4, 0.3), flat(0.6, 0.3, 0.1)
    found = expected_accepted(lambda: spectr_kseq.build(target, draft=draft, widths=(2,), tolerance=0.0), 1)
    assert found == pytest.approx(0.84, abs=1e-12)


def test_eight_sequences_of_eight_tokens_are_the_default() -> None:
    assert spectr_kseq.options["widths"].default == (8, *[1] * 7)
    target, draft = TableTarget(4, seed=1, order=1), TableTarget(4, seed=2, order=1)
    found = [
        expected_accepted(lambda o=options: spectr_kseq.build(target, draft=draft, widths=(2,), **o), 1)
        for options in ({}, {"tolerance": 0.0}, {"tolerance": 1.0})
    ]
    assert found[1] - 1e-4 <= found[0] <= found[1] and found[2] < found[0]
