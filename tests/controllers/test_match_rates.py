"""Rates of looked-up tokens: by the length of the match, learned from what was generated."""

from __future__ import annotations

import numpy

from outpace.controllers.match_rates import MatchRates
from outpace.cost.linear_cost import Numbers


def reached(rates: MatchRates, slot: int, matched: int) -> Numbers:
    return numpy.array(rates.reached(slot, matched, 100))


def test_longer_matches_are_trusted_more_and_later_tokens_less() -> None:
    rates = MatchRates(12)
    table = numpy.array([reached(rates, 0, matched) for matched in range(1, 14)])
    assert table.shape == (13, 12)
    assert (numpy.diff(table, axis=1) < 0).all() and (numpy.diff(table, axis=0) >= 0).all()
    assert (table[12] == table[11]).all()  # longer than any draft: counts as the longest


def test_rates_follow_what_was_generated() -> None:
    rates = MatchRates(8)
    before, long_before = reached(rates, 0, 1), reached(rates, 0, 8)
    for _ in range(200):
        rates.record(0, 1, [5, 6, 7], [5, 9])  # the first token comes true, the second does not
    for slot in (0, 1):  # another request begins with what all have taught
        after = reached(rates, slot, 1)
        assert after[0] > 0.9 > before[0] and after[1] < 0.1 < before[1]
    assert numpy.allclose(reached(rates, 1, 8), long_before)  # a match of 8 tokens was not seen


def test_a_request_whose_text_does_not_repeat_is_known_after_a_few_tokens() -> None:
    rates = MatchRates(8)
    for _ in range(6):
        rates.record(1, 1, [5], [6])
    own, other = reached(rates, 1, 5), reached(rates, 0, 5)
    assert (own < other).all() and own[0] < 0.6 < other[0]  # longer matches are trusted less too
    rates.release([1])
    assert (reached(rates, 1, 5) == other).all()


def test_tokens_after_the_generated_ones_teach_nothing() -> None:
    rates, other = MatchRates(8), MatchRates(8)
    rates.record(0, 3, [1, 2, 3, 4, 5], [1, 2])
    other.record(0, 3, [1, 2], [1, 2])
    assert (reached(rates, 0, 3) == reached(other, 0, 3)).all()
    rates.record(0, 100, [1], [1])
    assert reached(rates, 0, 8)[0] > reached(other, 0, 8)[0]
