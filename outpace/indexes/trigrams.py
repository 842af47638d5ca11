"""What follows two tokens, and how a text shifts it (Liu et al. 2025, ADED)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class TrigramTable:
    """Pairs of tokens -> up to `width` next tokens with weights, conditional frequencies at first.

    Pairs of the corpus stay; of pairs met later the last `room` are kept.
    """

    kind = "trigrams"

    def __init__(self, width: int = 12, room: int = 1 << 16) -> None:
        self.width, self.room = width, room

    @classmethod
    def build(
        cls,
        documents: Iterable[Sequence[int]],
        width: int = 12,
        room: int = 1 << 16,
        tell: Callable[[int], None] | None = None,
    ) -> TrigramTable:
        raise NotImplementedError

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        raise NotImplementedError

    def adapt(self, context: Sequence[int], last: int = 16, step: float = 0.04, cap: float = 3.0) -> None:
        """For each trigram in the last tokens: weight += step, at most cap; nothing is renormalised."""
        raise NotImplementedError

    def successors(self, first: int, second: int) -> list[tuple[int, float]]:
        """(token, weight) after these two tokens, by falling weight."""
        raise NotImplementedError
