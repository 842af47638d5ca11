"""RSD-S: trees whose shape depends on what was drawn keep the target's distribution, and spend their nodes
well."""

from __future__ import annotations

import pytest
import torch

from outpace.core.sampling_params import SamplingParams
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.expected_acceptance import expected_accepted
from outpace.proof.reference import table_logits
from outpace.recipes.base.speculative_sampling import speculative_sampling
from outpace.recipes.verification.rsd_c import rsd_c
from outpace.recipes.verification.rsd_s import rsd_s

TARGET, DRAFT = TableTarget(3, seed=1), TableTarget(3, seed=2, order=2)


@pytest.mark.parametrize(
    ("widths", "top_k"),
    [
        ((2, 2), 0),
        ((1, 2, 2), 2),
        pytest.param((3, 2), 0, marks=pytest.mark.slow),
        pytest.param((2, 3), 2, marks=pytest.mark.slow),
    ],
)
def test_distribution_is_the_targets_when_parents_compete(widths: tuple[int, ...], top_k: int) -> None:
    cases = [
        Case((0, 1, 2, 0, 1), SamplingParams(temperature=0.7, top_k=top_k, max_tokens=len(widths) + 1)),
        Case((2,), SamplingParams(temperature=0.0, max_tokens=4)),
    ]
    found = enumerate_distributions(lambda: rsd_s.build(TARGET, draft=DRAFT, widths=widths), cases)
    assert largest_error(found, table_logits(TARGET.logits, TARGET.state), cases) < BOUND


@pytest.mark.parametrize("seed", range(3))
def test_one_path_is_speculative_sampling(seed: int) -> None:
    target, draft = TableTarget(4, seed=seed, order=2), TableTarget(4, seed=seed + 100, order=2)
    chain = expected_accepted(lambda: speculative_sampling.build(target, draft=draft, depth=2), 2)
    beam = expected_accepted(lambda: rsd_s.build(target, draft=draft, widths=(1, 1)), 2)
    assert beam == pytest.approx(chain, abs=1e-12)


@pytest.mark.slow
def test_accepts_more_than_branching_into_as_many_nodes_when_the_drafter_is_good() -> None:
    # six nodes each: early ends of unlikely paths pay for a level more
    target, draft = TableTarget(3, seed=0, order=2), TableTarget(3, seed=0, order=2)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(target.logits.shape, generator=generator, dtype=torch.float64)
    draft.logits = target.logits + 0.3 * noise
    beam = expected_accepted(lambda: rsd_s.build(target, draft=draft, widths=(2, 2, 2)), 3)
    assert beam > expected_accepted(lambda: rsd_c.build(target, draft=draft, widths=(2, 2)), 2)


def test_the_default_beam_spends_as_much_as_that_of_constant_branching() -> None:
    assert sum(rsd_s.options["widths"].default) == 30
