"""SpecInfer: several draft models accept more than one, and the order of tests does not depend on tokens."""

from __future__ import annotations

import pytest

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Verifier
from outpace.core.sampling_params import SamplingParams
from outpace.drafters.compose.union import UnionDrafter
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.expected_acceptance import expected_accepted
from outpace.proof.reference import table_logits
from outpace.recipes.verification.specinfer import specinfer
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection

TARGET = TableTarget(3, seed=1, order=2)
DRAFTS = (TableTarget(3, seed=2, order=2), TableTarget(3, seed=3, order=1))


def accepted(*drafts: TableTarget, widths: tuple[int, ...] = (1,)) -> float:
    return expected_accepted(lambda: specinfer.build(TARGET, drafts=drafts, widths=widths), len(widths))


def test_two_drafters_accept_more_than_their_average() -> None:
    alone = [accepted(draft) for draft in DRAFTS]
    assert accepted(*DRAFTS) > sum(alone) / 2


def acceptance_with_rule(verifier: Verifier, *drafts: TableTarget) -> float:
    """What this verifier accepts of one token of each drafter."""
    drafter = UnionDrafter([DraftModel(draft, replace=True) for draft in drafts])
    return expected_accepted(lambda: Parts(TARGET, drafter, verifier, Fixed(1)), 1)


def test_any_acceptance_is_at_least_that_of_the_drafter_tested_first() -> None:
    orders = DRAFTS, DRAFTS[::-1]
    fixed = [acceptance_with_rule(Rejection(), *drafts) for drafts in orders]
    assert all(found > accepted(drafts[0]) for found, drafts in zip(fixed, orders, strict=True))
    assert accepted(*DRAFTS) == pytest.approx(sum(fixed) / 2, abs=1e-12)


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_same_drafter_twice_is_two_independent_draws(draft: TableTarget) -> None:
    assert accepted(draft, draft) == pytest.approx(accepted(draft, widths=(2,)), abs=1e-12)


def test_matching_the_same_trees_accepts_less() -> None:
    assert acceptance_with_rule(Match(), *DRAFTS) < accepted(*DRAFTS)


@pytest.mark.slow
def test_equal_tokens_of_two_drafters_stay_two_candidates() -> None:
    # the same drafter twice: where both draw the same first token, its node has a child drawn by each
    chain = accepted(DRAFTS[0], DRAFTS[0], widths=(1, 1))
    assert chain > accepted(DRAFTS[0], widths=(1, 1))


def test_the_default_tree_branches_at_the_third_token() -> None:
    assert specinfer.options["widths"].default == (1, 1, 3, 1, 1, 1, 1, 1)


def test_distribution_is_the_targets_when_two_drafters_draft_two_tokens_each() -> None:
    # of two tokens many are drafted twice
    target, *drafts = TableTarget(2, seed=1), TableTarget(2, seed=2, order=2), TableTarget(2, seed=3, order=1)
    cases = [Case((0, 1), SamplingParams(temperature=1.0, max_tokens=3))]
    found = enumerate_distributions(lambda: specinfer.build(target, drafts=drafts, widths=(1, 1)), cases)
    assert largest_error(found, table_logits(target.logits, target.state), cases) < BOUND
