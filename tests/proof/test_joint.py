"""Rows of one prompt: dependence between rows is found even if each row alone has the right distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Context, Parts, Plan, Step
from outpace.core.noise import Key
from outpace.core.recipe import Recipe
from outpace.core.sampling_params import SamplingParams
from outpace.decode import PROMPT_TOKENS
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.table import TableTarget
from outpace.proof.enumerated_noise import NotRepeatable
from outpace.proof.enumeration import BOUND, Leak
from outpace.proof.joint import (
    Group,
    JointNoise,
    enumerate_joint,
    independent,
    largest_joint_error,
    ragged_groups,
)
from outpace.proof.models import tables
from outpace.proof.mutants.joint import TargetNoiseReused, joint_variants
from outpace.proof.reference import difference, plain_distribution, table_logits
from outpace.proof.suite import PLANS, prove
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.base.speculative_sampling import speculative_sampling
from outpace.recipes.serving.bass import BatchLength, bass
from outpace.recipes.training_free.multi_sample import multi_sample
from outpace.recipes.training_free.stand.recipe import stand
from outpace.recipes.training_free.token_recycling import token_recycling
from outpace.recipes.verification.specinfer import specinfer
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection
from tests.tiers import slow

TARGET, DRAFT = TableTarget(3, seed=1), TableTarget(3, seed=2, order=2)
LOGITS = table_logits(TARGET.logits, TARGET.state)
PAIR = [Group((1, 1), (SamplingParams(1.0, top_k=2, max_tokens=3),) * 2)]


def test_the_distribution_of_independent_rows_is_a_product() -> None:
    """Two rows that differ in length: what plain decoding gives, computed here by hand."""
    one, other = SamplingParams(1.0, max_tokens=1), SamplingParams(0.7, max_tokens=1)
    group = Group((0,), (one, other))
    first, second = plain_distribution(LOGITS, (0,), one), plain_distribution(LOGITS, (0,), other)
    for a in range(3):
        for b in range(3):
            assert independent(LOGITS, group)[(a,), (b,)] == pytest.approx(first[(a,)] * second[(b,)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        (autoregressive, {}),
        (speculative_sampling, {"draft": DRAFT, "depth": 2}),
        (specinfer, {"drafts": (DRAFT,), "widths": (2,)}),
        (token_recycling, {"nodes": 3}),  # every row fills the table that the others draft from
        (stand, {"nodes_per_depth": (2,)}),
    ],
    ids=lambda each: each.name if isinstance(each, Recipe) else "",
)
def test_rows_of_one_prompt_are_independent(recipe: Recipe, options: dict[str, object]) -> None:
    found = enumerate_joint(lambda: recipe.build(TARGET, **options), PAIR)
    assert found.replayed == 20
    assert largest_joint_error(found, LOGITS, PAIR) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("options", [slow({}), {"tree": True, "min_ngram": 1, "min_share": 0.1}])
def test_samples_that_draft_for_one_another_are_independent(options: dict[str, object]) -> None:
    drafted = kept = 0

    def build() -> Parts:
        parts = multi_sample.build(TARGET, **options)
        observe = parts.drafter.observe

        def counted(step: Step) -> None:
            nonlocal drafted, kept
            if step.scores.logits is not None:
                drafted += len(step.draft.tree) - step.draft.tree.forest.num_rows
                kept += sum(len(row) - 1 for row in step.generated)
            observe(step)

        parts.drafter.observe = counted
        return parts

    groups = ragged_groups(3, 4)
    found = enumerate_joint(build, groups)
    assert max(len(group.sampling) for group in groups) == 3
    assert largest_joint_error(found, LOGITS, groups) < BOUND
    assert 100 < kept < drafted


def marginals(
    distribution: dict[tuple[tuple[int, ...], ...], float], row: int
) -> dict[tuple[int, ...], float]:
    found: dict[tuple[int, ...], float] = {}
    for texts, probability in distribution.items():
        found[texts[row]] = found.get(texts[row], 0.0) + probability
    return found


@pytest.mark.parametrize(
    "name",
    ["one stream of noise", "seed plus position", "drawn once for equal texts", "another's draw claimed"],
)
def test_a_mistake_that_no_single_row_shows_is_caught(name: str) -> None:
    [wrong] = [each for each in joint_variants(TARGET) if each.name == f"samples: {name}"]
    found = enumerate_joint(wrong.build, PAIR, noise=wrong.noise, batch=1, replays=0)
    for row, sampling in enumerate(PAIR[0].sampling):
        assert (
            difference(
                marginals(found.distributions[0], row), plain_distribution(LOGITS, PAIR[0].prompt, sampling)
            )
            < BOUND
        )
    assert largest_joint_error(found, LOGITS, PAIR) > 1e6 * BOUND


def test_matching_is_exact_for_a_draft_that_reuses_another_rows_noise() -> None:
    """The draw that decides about a row is still its own."""
    found = enumerate_joint(
        lambda: Parts(TARGET, TargetNoiseReused(TARGET), Match(), Fixed(1)), PAIR, batch=1, replays=0
    )
    assert largest_joint_error(found, LOGITS, PAIR) < BOUND


class ByCompany(JointNoise):
    """Flips of a run among others end otherwise than those of a run alone."""

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        return super().flip([0.0 if len(self._lengths) > 2 else each for each in accept], key)


def test_runs_that_are_not_apart_are_noticed() -> None:
    with pytest.raises(Leak):
        enumerate_joint(
            lambda: speculative_sampling.build(TARGET, draft=DRAFT, depth=2), PAIR, noise=ByCompany
        )


def short_lengths() -> Parts:
    """Draft lengths that change within a few tokens, with those that the rows of a batch accept."""
    return bass.build(TARGET, draft=DRAFT, depth=1, increment=1, max_depth=3)


# as many of these prompts as a step reads end between the two rows of a run
BINARY = SamplingParams(1.0, max_tokens=3, logit_bias=((2, float("-inf")),))
SPLIT = [Group((0, 1, 1, 0, 0, 1, 1, 0, 1, 1, 0), (BINARY,) * 2)]
LONGER = [Group((1, 1), (SamplingParams(max_tokens=5), replace(BINARY, max_tokens=5)))]


@pytest.mark.slow
def test_rows_that_share_a_controller_begin_together_in_every_batch() -> None:
    """Otherwise a row would have drafts of another length than alone: other tokens, though of the same
    distribution."""
    assert PROMPT_TOKENS // (len(SPLIT[0].prompt) - 1) % 2 == 1
    found = enumerate_joint(short_lengths, SPLIT, replays=400)
    assert largest_joint_error(found, LOGITS, SPLIT) < BOUND
    assert found.counts.accepted and found.replayed > 100


class ByMeasuredTime(BatchLength):
    """Plans by the time of the steps before, as SmartSpec does."""

    seconds = 0.0

    def plan(self, ctx: Context) -> Plan:
        return Plan((2 if self.seconds > 0.5 else 1,) * len(ctx.slots))

    def observe(self, step: Step) -> None:
        self.seconds = sum(step.seconds.values())


class OneForAll(BatchLength):
    """Wrong: one length for all sessions and batches, which outlives them."""

    length = 1

    def plan(self, ctx: Context) -> Plan:
        return Plan((OneForAll.length,) * len(ctx.slots))

    def _adapt(self, accepted: Sequence[int]) -> None:
        OneForAll.length = 3 - OneForAll.length


def with_controller(controller: type[BatchLength]) -> Parts:
    return Parts(TARGET, DraftModel(DRAFT), Rejection(), controller(1))


@pytest.mark.slow
def test_a_run_can_be_repeated_if_plans_follow_measured_times() -> None:
    found = enumerate_joint(lambda: with_controller(ByMeasuredTime), LONGER)
    assert largest_joint_error(found, LOGITS, LONGER) < BOUND
    assert found.counts.deepest == 2


def test_a_length_shared_by_different_runs_is_noticed() -> None:
    with pytest.raises((Leak, NotRepeatable)):
        enumerate_joint(lambda: with_controller(OneForAll), PAIR)


def test_noise_that_depends_on_other_runs_is_noticed_with_a_shared_controller() -> None:
    with pytest.raises(Leak):
        enumerate_joint(short_lengths, PAIR, noise=ByCompany)


@pytest.mark.slow
def test_drafters_across_rows_are_always_proven_together() -> None:
    models, plan = tables(), replace(PLANS["table"], most=200, most_varied=50)
    assert {proof.rows for proof in prove(multi_sample, models, plan)} == {1, 2, 3}
    assert {proof.rows for proof in prove(autoregressive, models, plan)} == {1}
