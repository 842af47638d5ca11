"""For each token the likeliest next ones when the target last read it (Luo et al. 2025, Token Recycling)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outpace.core.tree import Shape
from outpace.indexes.branches import Branches


class AdjacencyTable:
    """(vocab, width) int32, -1 where nothing is known: of one size from the start."""

    kind = "adjacency"

    def __init__(self, vocab: int, width: int = 8) -> None:
        self.vocab, self.width = vocab, width

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        raise NotImplementedError

    def update(self, tokens: Sequence[int], successors: Sequence[Sequence[int]]) -> None:
        """Replace rows: (N,) tokens and (N, width) what may follow, likeliest first. The last of equal tokens wins."""
        raise NotImplementedError

    def learn(self, tokens: Tensor, logits: Tensor) -> None:
        """Update from unwarped logits: (N,) tokens read, (N, V) logits after them."""
        raise NotImplementedError

    def successors(self, token: int) -> list[int]:
        """Likeliest first; empty if the token was never read."""
        raise NotImplementedError

    def draft(self, root: int, shape: Shape) -> Branches:
        """The nodes of a fixed tree: rank r below token t is the r-th successor of t.

        What is below an unknown token is left out. A weight is 1 / (1 + sum of ranks along the path).
        """
        raise NotImplementedError
