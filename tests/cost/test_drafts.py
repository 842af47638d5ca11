"""Tokens per step and numbers of draft tokens, against closed forms and enumeration."""

from __future__ import annotations

from itertools import product

import numpy
import pytest

from outpace.cost.drafts import MOST_ROWS, Drafts
from outpace.cost.step_time import StepTime, best_length, expected_tokens


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("length", [1, 4, 8])
def test_a_chain_of_equal_rates_is_the_geometric_series(rate: float, length: int) -> None:
    drafts = Drafts.chain([rate] * 8)
    # the bonus token is counted once: without any acceptance a step gives one token
    assert expected_tokens(drafts.rates, length) == pytest.approx((1 - rate ** (length + 1)) / (1 - rate))
    assert drafts.drafted(length) == length and list(drafts.lengths) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_rates_come_back_from_the_shares_of_accepted_tokens() -> None:
    assert Drafts.chain([0.9, 0.5, 0.2]).rates == pytest.approx([0.9, 0.5, 0.2])
    found = Drafts((0.5, 0.5), (0.4, 0.0), can_be_cut=False)
    assert found.rates == [0.4, 0.0] and list(found.lengths) == [2]
    assert expected_tokens(found.rates, 2) == 1.4
    with pytest.raises(ValueError, match="as many shares"):
        Drafts((1.0,), ())


def test_rows_draft_independently_of_one_another() -> None:
    drafts = Drafts((0.6, 0.5, 0.1), (0.5, 0.2, 0.0), can_be_cut=False)
    own = {0: 0.4, 1: 0.1, 2: 0.4, 3: 0.1}
    expected = numpy.zeros(10)
    for lengths in product(own, repeat=3):
        expected[sum(lengths)] += numpy.prod([own[each] for each in lengths])
    assert drafts.totals(3, 3) == pytest.approx(expected)
    assert drafts.totals(1, 1) == pytest.approx([0.4, 0.6])  # cut to one token


def test_of_trees_and_many_rows_the_mean_is_known() -> None:
    tree = Drafts((1.0, 1.0), (0.8, 0.5), tree_nodes=6.25, can_be_cut=False)
    totals = tree.totals(2, 2)
    assert totals @ numpy.arange(len(totals)) == pytest.approx(12.5) and sum(totals) == 1
    many = Drafts((0.5,), (0.4,)).totals(1, MOST_ROWS + 1)
    assert many @ numpy.arange(len(many)) == pytest.approx((MOST_ROWS + 1) / 2)


@pytest.mark.parametrize("draft", [0.1, 0.5, 0.9])
def test_one_token_pays_where_its_rate_is_above_the_relative_cost_of_a_draft(draft: float) -> None:
    time = StepTime(draft, lambda tokens: 1.0)  # verification of two tokens costs what that of one does
    for rate in (draft - 0.05, draft + 0.05):
        assert best_length([rate], time, [0, 1]).length == (rate > draft)
