"""SpecInfer: several drafters help one another, and their order does not look at tokens."""

from __future__ import annotations

import pytest

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts
from outpace.core.tree import Shape
from outpace.drafters.lm import LM
from outpace.drafters.together import Together
from outpace.law.acceptance import expected_accepted
from outpace.models.toy import Table
from outpace.recipes.specinfer import specinfer
from outpace.verifiers.match import Match

TARGET = Table(3, seed=1, order=2)
DRAFTS = (Table(3, seed=2, order=2), Table(3, seed=3, order=1))


def accepted(*drafts: Table, widths: tuple[int, ...] = (1,)) -> float:
    return expected_accepted(lambda: specinfer.build(TARGET, drafts=drafts, widths=widths), len(widths))


def test_two_drafters_accept_more_than_their_average() -> None:
    alone = [accepted(draft) for draft in DRAFTS]
    assert accepted(*DRAFTS) > sum(alone) / 2


def test_any_acceptance_is_at_least_that_of_the_drafter_tested_first() -> None:
    # the order is random: half the time each drafter comes first, and the other can only add
    assert accepted(*DRAFTS) >= min(accepted(draft) for draft in DRAFTS)


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_same_drafter_twice_is_two_independent_draws(draft: Table) -> None:
    assert accepted(draft, draft) == pytest.approx(accepted(draft, widths=(2,)), abs=1e-12)


def test_matching_the_same_trees_accepts_less() -> None:
    def matched() -> Parts:
        drafter = Together([LM(draft, replace=True) for draft in DRAFTS])
        return Parts(TARGET, drafter, Match(), Fixed(Shape.branching((1,))))

    assert expected_accepted(matched, 1) < accepted(*DRAFTS)


def test_equal_tokens_of_two_drafters_stay_two_candidates() -> None:
    # drafters sure of the same token: below it both continuations can be accepted
    chain = accepted(DRAFTS[0], DRAFTS[0], widths=(1, 1))
    assert chain > accepted(DRAFTS[0], widths=(1, 1))


def test_the_default_tree_branches_at_the_third_token() -> None:
    assert specinfer.options["widths"].default == (1, 1, 3, 1, 1, 1, 1, 1)
