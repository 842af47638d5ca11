"""The target's mean probabilities after n-grams it has read (Song et al. 2025, STAND)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class LogitNGrams:
    """n-grams of `shortest` to `longest` tokens -> up to `width` next tokens with mean probabilities.

    At most `room` n-grams: when they are used up, no new ones are taken until `clear`.
    """

    kind = "logit-ngrams"

    def __init__(self, shortest: int = 2, longest: int = 4, width: int = 10, room: int = 1 << 18) -> None:
        self.shortest, self.longest, self.width, self.room = shortest, longest, width, room

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        raise NotImplementedError

    def clear(self) -> None:
        raise NotImplementedError

    def update(self, tokens: Sequence[int], ids: Sequence[Sequence[int]], probs: Sequence[Sequence[float]]) -> None:
        """(T,) tokens; (n, K) likeliest tokens and their probabilities after each of the last n of them, K <= width.

        The k-th observation of an n-gram moves its mean by 1 / k over the union of tokens; then the top ones stay.
        """
        raise NotImplementedError

    def lookup(self, tokens: Sequence[int]) -> tuple[int, list[int], list[float]]:
        """The longest known n-gram at the end: n, its next tokens, their means by fall; (0, [], []) if none is known."""
        raise NotImplementedError
