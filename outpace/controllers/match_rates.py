"""How often looked-up tokens are what the target generates, by the length of the match before them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from outpace.controllers.linear_cost import Numbers

# matched tokens before a looked-up token: first of each group
GROUPS = (1, 2, 3, 4, 6, 9, 14, 22)
PRIOR_RATES = numpy.array((0.3, 0.5, 0.6, 0.7, 0.8, 0.87, 0.92, 0.95))
PRIOR_TOKENS = 4.0  # weight of these, in tokens
OWN_PRIOR = 4.0  # tokens of a request that count as much as what is known of all requests
KEEP_ALL, KEEP_OWN = 0.998, 0.95  # share of the evidence that is kept per step: of all requests, of one


class MatchRates:
    """Per request the probability that a looked-up token is generated if those before it in the draft were.

    A token drafted at depth d follows as many matching tokens as the lookup matched, plus d - 1. The longer
    the match, the likelier the token: these rates are those of all requests. A request has its own odds
    relative to them, the same factor for matches of every length, so that a few tokens show whether its text
    is one that repeats. Lookups are compared with what was generated in every step, whether they were drafted
    or not: a looked-up token is accepted with the probability that the target generates it.
    """

    def __init__(self, longest: int) -> None:
        """`longest`: tokens that are drafted at most; longer matches count as this long."""
        self._group = numpy.searchsorted(GROUPS, numpy.arange(2 * longest + 1), side="right").clip(1) - 1
        self._longest = longest
        self._tested = numpy.full(len(GROUPS), PRIOR_TOKENS)
        self._accepted = PRIOR_RATES * self._tested
        # slot -> tokens that were accepted, that would have been at the rates of all, and that were tested
        self._own: dict[int, tuple[float, float, float]] = {}

    def reached(self, slot: int, matched: int) -> Numbers:  # (longest,)
        """Entry d - 1: the probability that the first d tokens after a match of so many tokens are
        accepted."""
        before = max(1, min(matched, self._longest))
        rates = self._accepted / self._tested
        if (own := self._own.get(slot)) is not None:
            accepted, expected, tested = own
            usual = expected / max(tested, 1e-9)
            share = (accepted + OWN_PRIOR * usual) / (tested + OWN_PRIOR)
            odds = rates / (1 - rates) * (share * (1 - usual) / (usual * (1 - share)))
            rates = odds / (1 + odds)
        return rates[self._group[before : before + self._longest]].cumprod()

    def record(self, slot: int, matched: int, looked_up: Sequence[int], generated: Sequence[int]) -> None:
        """Compare the tokens that were looked up after a match with those that a step generated."""
        accepted, tested = numpy.zeros(len(GROUPS)), numpy.zeros(len(GROUPS))
        for before, (one, other) in enumerate(
            zip(looked_up, generated, strict=False), min(matched, self._longest)
        ):
            group = self._group[min(before, len(self._group) - 1)]
            tested[group] += 1
            if one != other:
                break
            accepted[group] += 1
        expected = float(tested @ (self._accepted / self._tested))
        own = self._own.get(slot, (0.0, 0.0, 0.0))
        new = float(accepted.sum()), expected, float(tested.sum())
        self._own[slot] = (
            own[0] * KEEP_OWN + new[0],
            own[1] * KEEP_OWN + new[1],
            own[2] * KEEP_OWN + new[2],
        )
        self._accepted = self._accepted * KEEP_ALL + accepted
        self._tested = self._tested * KEEP_ALL + tested

    def release(self, slots: Sequence[int]) -> None:
        """Drop the odds of the requests in these slots; the rates of all requests are kept."""
        for slot in slots:
            self._own.pop(slot, None)
