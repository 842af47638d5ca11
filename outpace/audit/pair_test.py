"""Sequential test of whether two servers draw from one distribution, from pairs of their texts alone.

If both answers to a prompt come from one distribution, either is as likely to be the first server's, given
the two. So twice the probability that a classifier of earlier pairs gives to the true assignment has
expectation 1, and the product over pairs is a nonnegative martingale (Ville's inequality). The evidence is
the average of the products of several logistic regressions, which learn online at different rates from what
occurs in the texts.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import exp, isfinite, log, log1p, sqrt

from outpace.audit.mixture_test import log_mean

RATES = (0.03, 0.1, 0.3, 0.6)
MOST = 3.0  # largest log odds of a bet


class PairTest:
    """The evidence that two servers answer differently."""

    def __init__(self) -> None:
        self._weights: list[dict[str, float]] = [{} for _ in RATES]
        self._squares: dict[str, float] = {}
        self._logs = [0.0] * len(RATES)
        self._earlier: dict[object, set[int]] = {}
        self.num_tokens = 0
        self.num_pairs = 0
        self.log_evidence = 0.0  # the largest so far

    def observe(
        self,
        request: object,
        one: Sequence[str],
        other: Sequence[str],
        described: tuple[Mapping[str, float], Mapping[str, float]] = ({}, {}),
    ) -> None:
        """The answers of the audited server and of the reference to a request, in tokens or words.
        `described`: what else is known of each text, whichever server it comes from."""
        earlier = self._earlier.setdefault(request, set())
        difference: dict[str, float] = {}
        for sign, units, more in ((1, one, described[0]), (-1, other, described[1])):
            for name, value in (*_features(request, units, earlier), *more.items()):
                if isfinite(value):
                    difference[name] = difference.get(name, 0.0) + sign * value
        for name, value in difference.items():
            self._squares[name] = self._squares.get(name, 1.0) + value * value
        for at, (rate, weights) in enumerate(zip(RATES, self._weights, strict=True)):
            odds = sum(weights.get(name, 0.0) * value for name, value in difference.items())
            odds = max(-MOST, min(MOST, odds))
            self._logs[at] += log(2) - log1p(exp(-odds))
            error = 1 / (1 + exp(odds))
            for name, value in difference.items():
                step = rate * error * value / sqrt(self._squares[name])
                weights[name] = weights.get(name, 0.0) + step
        earlier.update((_hash(one), _hash(other)))
        self.num_tokens += len(one)
        self.num_pairs += 1
        self.log_evidence = max(self.log_evidence, log_mean(self._logs))

    def finding(self) -> str:
        """What distinguishes the two, for people."""
        weights = self._weights[max(range(len(RATES)), key=self._logs.__getitem__)]
        name = max(weights, key=lambda each: abs(weights[each]), default="")
        return f"its texts have {'more' if weights.get(name, 0) > 0 else 'less'} of: {name}"


def _features(request: object, units: Sequence[str], earlier: Iterable[int]) -> Iterable[tuple[str, float]]:
    """What occurs in a text; the same whichever server it comes from."""
    length = max(1, len(units))
    for unit, count in Counter(units).items():
        yield f"{unit!r}", count / sqrt(length)
    for at, unit in enumerate(units[:2]):
        yield f"{unit!r} as token {at} of answer to prompt {request}", 1.0
    yield "length", length / 32
    yield (
        "tokens that repeat the one before",
        sum(a == b for a, b in zip(units, units[1:], strict=False)) / sqrt(length),
    )
    yield "different tokens", len(set(units)) / sqrt(length)
    if _hash(units) in earlier:
        yield "answers that were given before", 3.0


def _hash(units: Sequence[str]) -> int:
    return zlib.crc32("\0".join(units).encode("utf-8", "replace"))
