"""Rates of looked-up tokens: by the length of the match, learned from what was generated."""

from __future__ import annotations

import numpy

from outpace.controllers.match_rates import MatchRates


def test_longer_matches_are_trusted_more_and_later_tokens_less() -> None:
    rates = MatchRates(12)
    reached = numpy.array([rates.reached(0, matched) for matched in range(1, 14)])
    assert reached.shape == (13, 12)
    assert (numpy.diff(reached, axis=1) < 0).all() and (numpy.diff(reached, axis=0) >= 0).all()
    assert (reached[12] == reached[11]).all()  # longer than any draft: counts as the longest


def test_rates_follow_what_was_generated() -> None:
    rates = MatchRates(8)
    before, long_before = rates.reached(0, 1), rates.reached(0, 8)
    for _ in range(200):
        rates.record(0, 1, [5, 6, 7], [5, 9])  # the first token comes true, the second does not
    for slot in (0, 1):  # another request begins with what all have taught
        after = rates.reached(slot, 1)
        assert after[0] > 0.9 > before[0] and after[1] < 0.1 < before[1]
    assert numpy.allclose(rates.reached(1, 8), long_before)  # a match of 8 tokens was not seen


def test_a_request_whose_text_does_not_repeat_is_known_after_a_few_tokens() -> None:
    rates = MatchRates(8)
    for _ in range(6):
        rates.record(1, 1, [5], [6])
    own, other = rates.reached(1, 5), rates.reached(0, 5)
    assert (own < other).all() and own[0] < 0.6 < other[0]  # longer matches are trusted less too
    rates.release([1])
    assert (rates.reached(1, 5) == other).all()


def test_tokens_after_the_generated_ones_teach_nothing() -> None:
    rates, other = MatchRates(8), MatchRates(8)
    rates.record(0, 3, [1, 2, 3, 4, 5], [1, 2])
    other.record(0, 3, [1, 2], [1, 2])
    assert (rates.reached(0, 3) == other.reached(0, 3)).all()
    rates.record(0, 100, [1], [1])
    assert rates.reached(0, 8)[0] > other.reached(0, 8)[0]
