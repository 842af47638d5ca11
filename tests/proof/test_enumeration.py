"""The enumeration of output distributions: its reference, its counts, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Parts
from outpace.core.noise import Key
from outpace.core.sampling_params import SamplingParams
from outpace.models.table import TableTarget
from outpace.proof.enumerated_noise import Branch, EnumeratedNoise
from outpace.proof.enumeration import Case, Leak, TooMany, enumerate_distributions, largest_error
from outpace.proof.mutants.catalogue import PositionNoise
from outpace.proof.mutants.drafters import CorrectDrafter, ReadsRejected
from outpace.proof.reference import difference, plain_distribution, table_logits
from outpace.verifiers.rejection import Rejection

TARGET, DRAFT = TableTarget(3, seed=1), TableTarget(3, seed=2, order=2)
CASES = [Case((0, 1, 2, 0, 1), SamplingParams(temperature=0.7, max_tokens=3))]


def key(node: int, use: str = "draft", depth: int = 0) -> Key:
    return Key([0], [node], [depth], use)


def test_reference_distribution_multiplies_the_targets_own_probabilities() -> None:
    distribution = plain_distribution(
        table_logits(TARGET.logits, TARGET.state), (0, 1), SamplingParams(temperature=1.0, max_tokens=2)
    )
    first = TARGET.logits[TARGET.state((0, 1))].softmax(-1)
    second = TARGET.logits[TARGET.state((0, 1, 2))].softmax(-1)
    assert len(distribution) == 9
    assert distribution[(2, 1)] == pytest.approx(float(first[2] * second[1]), abs=1e-15)
    assert sum(distribution.values()) == pytest.approx(1)


def test_reference_distribution_ends_texts_at_stop_tokens() -> None:
    distribution = plain_distribution(
        table_logits(TARGET.logits, TARGET.state),
        (0,),
        SamplingParams(temperature=1.0, max_tokens=3, stop=(1,)),
    )
    assert all(1 not in text[:-1] for text in distribution)
    assert (1,) in distribution and sum(distribution.values()) == pytest.approx(1)


def test_difference_counts_outcomes_only_one_side_has() -> None:
    assert difference({(0,): 1.0}, {(1,): 0.25, (0,): 0.75}) == 0.25


def test_fresh_keys_are_independent_choices() -> None:
    branch = Branch((), 0)
    noise = EnumeratedNoise([branch], [1], [5])
    distribution = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    assert [int(noise.choose(distribution, key(node))) for node in range(2)] == [0, 0]
    assert branch.left_open == [(1,), (0, 1)]
    assert branch.probability == pytest.approx(0.0625)


def test_a_repeated_key_is_the_same_number() -> None:
    branch = Branch((1,), 0)
    noise = EnumeratedNoise([branch], [1], [5])
    distribution = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    assert int(noise.choose(distribution, key(0))) == 1
    assert int(noise.choose(distribution, key(0))) == 1
    # the number is known to lie above 0.25, so a draw that splits there has only one outcome left
    assert noise.flip([0.25], key(0)) == [False]
    assert branch.left_open == [] and branch.probability == pytest.approx(0.75)


def test_the_targets_own_draws_are_keyed_by_position_across_turns() -> None:
    branch = Branch((2,), 0)
    distribution = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    first = EnumeratedNoise([branch], [1], [5]).choose(distribution, key(3, "target", depth=2))
    later = EnumeratedNoise([branch], [2], [7]).choose(distribution, key(0, "target", depth=0))
    assert int(first) == int(later) == 2


def test_reading_refused_tokens_is_exact_with_fresh_noise_only() -> None:
    def build() -> Parts:
        return Parts(TARGET, ReadsRejected(DRAFT), Rejection(), Fixed(2))

    reference = table_logits(TARGET.logits, TARGET.state)
    assert largest_error(enumerate_distributions(build, CASES), reference, CASES) < 1e-12
    spoilt = enumerate_distributions(build, CASES, noise=PositionNoise)
    assert largest_error(spoilt, reference, CASES) > 1e-3


def test_a_row_that_leaks_into_another_is_caught() -> None:
    class Leaky(CorrectDrafter):
        def distribution(self, ctx: Context, row: int, path: Sequence[int]) -> Tensor:
            distribution = super().distribution(ctx, row, path)
            return distribution if len(ctx.slots) == 1 else distribution.flip(0)

    with pytest.raises(Leak):
        enumerate_distributions(lambda: Parts(TARGET, Leaky(DRAFT), Rejection(), Fixed(2)), CASES * 2)


def test_too_many_runs_are_refused_not_begun() -> None:
    with pytest.raises(TooMany, match="fewer tokens"):
        enumerate_distributions(
            lambda: Parts(TARGET, CorrectDrafter(DRAFT), Rejection(), Fixed(2)), CASES, most=50
        )
