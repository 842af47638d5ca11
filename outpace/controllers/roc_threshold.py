"""A threshold of draft probabilities that separates accepted from rejected tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy

REMEMBERED = 1024  # last verified draft tokens that the threshold is fitted to
FEWEST = 6  # verified draft tokens before it is fitted
MISSED = 3.0  # cost of stopping at an accepted token, relative to going on after a rejected one


class RocThreshold:
    """A threshold that begins at a given value and is fitted again after every step to the last tokens that
    were verified, as in transformers' assisted generation."""

    def __init__(self, value: float) -> None:
        self.value = value
        self._tokens: deque[tuple[float, bool]] = deque(maxlen=REMEMBERED)

    def learn(self, tokens: Iterable[tuple[float, bool]]) -> None:
        """Add verified tokens, (draft probability, whether accepted), and fit the threshold if there are
        enough of both kinds."""
        self._tokens.extend(tokens)
        probs, accepted = zip(*self._tokens, strict=True) if self._tokens else ((), ())
        if len(probs) >= FEWEST and 0 < sum(accepted) < len(accepted):
            self.value = roc_threshold(probs, accepted)


def roc_threshold(probs: Sequence[float], accepted: Sequence[bool]) -> float:  # (N,), (N,)
    """The draft probability t for which the share of rejected tokens of probability t or more plus `MISSED`
    times the share of accepted tokens below t is smallest; the largest of several. Both kinds must occur."""
    order = numpy.argsort(-numpy.array(probs), kind="stable")
    sorted_probs, is_accepted = numpy.array(probs)[order], numpy.array(accepted, dtype=bool)[order]
    false_positives = (~is_accepted).cumsum() / (~is_accepted).sum()
    false_negatives = 1 - is_accepted.cumsum() / is_accepted.sum()
    costs = false_positives + MISSED * false_negatives
    # tokens of equal probability are on one side
    costs[:-1][sorted_probs[1:] == sorted_probs[:-1]] = numpy.inf
    return float(sorted_probs[costs.argmin()])
