"""The logits of entropy adaptive decoding computed plainly: the models write a given text by turns, each
token after a forward over the whole text before it.

Letters: M texts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import log2

import torch
from torch import Tensor

from outpace.core.contracts import Target
from outpace.drafters.model.plain_drafts import logits_after


class RoutedLogits:
    """Implementation of core.contracts.Reference."""

    def __init__(self, small: Target, large: Target, tau: float, window: int, min_stay: int) -> None:
        self._small, self._large = small, large
        self._tau, self._window, self._min_stay = tau, window, min_stay
        self._after = lru_cache(1 << 14)(logits_after)

    @property
    def description(self) -> str:
        """Completes the sentence "the output is that of ...", for users."""
        return (
            f"the draft model where the mean entropy of the last {self._window} tokens is at most "
            f"{self._tau:g} bits, and of the target elsewhere"
        )

    def logits(self, texts: Sequence[Sequence[int]], prompt_length: int) -> Tensor:
        return torch.stack([self._of_model(tuple(text), prompt_length) for text in texts])

    def _of_model(self, text: tuple[int, ...], prompt_length: int) -> Tensor:  # (V,)
        model, stay, entropies = self._small, 0, list[float]()
        for end in range(prompt_length, len(text)):
            shares = self._after(model, text[:end]).double().softmax(-1).tolist()
            entropies.append(-sum(share * log2(share) for share in shares if share))
            stay += 1
            recent = entropies[-self._window :]
            if stay >= self._min_stay:
                wanted = self._large if sum(recent) / len(recent) > self._tau else self._small
                model, stay = wanted, stay if wanted is model else 0
        return self._after(model, text)
