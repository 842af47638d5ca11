"""How often looked-up tokens are what the target generates, by the length of the match before them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

# matched tokens before a looked-up token: first of each group
GROUPS = (1, 2, 3, 4, 6, 9, 14, 22)
PRIOR_RATES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.87, 0.92, 0.95)
PRIOR_TOKENS = 4.0  # weight of these, in tokens
OWN_PRIOR = 4.0  # tokens of a request that count as much as what is known of all requests
KEEP_ALL, KEEP_OWN = 0.998, 0.95  # share of the evidence that is kept per step: of all requests, of one
LARGEST_WEIGHT = 1e9  # of new evidence, before all weights are divided by it


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
        # number of tokens that match before a token -> its group
        self._group = [max(1, bisect_right(GROUPS, before)) - 1 for before in range(2 * longest + 1)]
        self._longest = longest
        # evidence by group; new evidence gets a growing weight, which is cheaper than shrinking all the old
        self._tested = [PRIOR_TOKENS] * len(GROUPS)
        self._accepted = [PRIOR_TOKENS * rate for rate in PRIOR_RATES]
        self._weight = 1.0
        self._rates = list(PRIOR_RATES)
        # slot -> tokens that were accepted, that would have been at the rates of all, and that were tested
        self._own: dict[int, tuple[float, float, float]] = {}

    def reached(self, slot: int, matched: int, num_tokens: int) -> list[float]:  # num_tokens
        """Entry d - 1: the probability that the first d tokens after a match of `matched` tokens are
        accepted; for at most `longest` tokens."""
        rates = self._rates
        if (own := self._own.get(slot)) is not None:
            accepted, expected, tested = own
            usual = expected / tested
            share = (accepted + OWN_PRIOR * usual) / (tested + OWN_PRIOR)
            factor = share * (1 - usual) / (usual * (1 - share))  # of the odds of each rate
            rates = [rate * factor / (1 - rate + rate * factor) for rate in rates]
        before = max(1, min(matched, self._longest))
        groups = self._group[before : before + min(num_tokens, self._longest)]
        return list(accumulate([rates[group] for group in groups], mul))

    def record(self, slot: int, matched: int, looked_up: Sequence[int], generated: Sequence[int]) -> None:
        """Compare the tokens that were looked up after a match with those that a step generated: at least
        one of each."""
        own_accepted, own_expected, own_tested = self._own.get(slot, (0.0, 0.0, 0.0))
        accepted, expected, tested = own_accepted * KEEP_OWN, own_expected * KEEP_OWN, own_tested * KEEP_OWN
        self._weight /= KEEP_ALL
        changed = set[int]()
        for before, (one, other) in enumerate(
            zip(looked_up, generated, strict=False), min(matched, self._longest)
        ):
            group = self._group[min(before, len(self._group) - 1)]
            changed.add(group)
            expected += self._rates[group]
            tested += 1
            self._tested[group] += self._weight
            if one != other:
                break
            accepted += 1
            self._accepted[group] += self._weight
        self._own[slot] = accepted, expected, tested
        for group in changed:
            self._rates[group] = self._accepted[group] / self._tested[group]
        if self._weight > LARGEST_WEIGHT:
            self._accepted = [each / self._weight for each in self._accepted]
            self._tested = [each / self._weight for each in self._tested]
            self._weight = 1.0

    def release(self, slots: Sequence[int]) -> None:
        """Drop the odds of the requests in these slots; the rates of all requests are kept."""
        for slot in slots:
            self._own.pop(slot, None)
