"""Scores of draft tokens by a model that does not know the tokens before them, and by n-grams that do."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

import numpy
from numpy.typing import NDArray

from outpace.drafters.model.best_first import LogProbs, Tokens
from outpace.indexes.automata.static import StaticAutomaton

LEAST = log(1e-10)  # logarithm of the least probability that counts


class NGramScores:
    """Implementation of drafters.model.best_first.Scored: the weighted sum of the logs of a token's
    probabilities p by a model and p_ngram after the tokens before it in a corpus, on level l, counted from 0:
    (l + 1)^level_power (model_weight model_decay^l log p + ngram_weight log p_ngram)."""

    def __init__(
        self,
        counts: StaticAutomaton | None,  # of a corpus; None: n-grams do not count
        ngram_weight: float,
        *,
        model_weight: float = 1.0,
        model_decay: float = 1.0,
        level_power: float = 0.0,
    ) -> None:
        self._counts = counts if ngram_weight else None
        self._ngram_weight, self._model_weight = ngram_weight, model_weight
        self._model_decay, self._level_power = model_decay, level_power

    def __call__(
        self, context: Sequence[int], level: int, tokens: Tokens, log_probs: LogProbs
    ) -> NDArray[numpy.float64]:
        of_level = (level + 1) ** self._level_power
        of_model = of_level * self._model_weight * self._model_decay**level
        scores = of_model * numpy.maximum(log_probs, LEAST)
        if self._counts is None:
            return scores
        probs = self._counts.next_probs(context, tokens)
        return scores + of_level * self._ngram_weight * numpy.log(numpy.maximum(probs, exp(LEAST)))
