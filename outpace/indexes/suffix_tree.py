"""A counted suffix tree of bounded depth over many requests, the oldest forgotten first (Oliaro et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.branches import Branches


class SuffixTree:
    """Every substring of up to `depth` tokens with its number of occurrences, path-compressed, siblings by count.

    It holds at most `most_tokens` tokens: whole requests are evicted, first come first gone, and a request that alone
    is longer is no longer extended. At most two nodes a token.
    """

    kind = "suffix-tree"

    def __init__(self, depth: int = 64, most_tokens: int = 1 << 24) -> None:
        self.depth, self.most_tokens = depth, most_tokens

    @property
    def num_tokens(self) -> int:
        raise NotImplementedError

    @property
    def num_requests(self) -> int:
        raise NotImplementedError

    @property
    def num_nodes(self) -> int:
        raise NotImplementedError

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        raise NotImplementedError

    def extend(self, request: int, tokens: Sequence[int]) -> None:
        """Append to a request, a new one if it is not known; O(depth) a token."""
        raise NotImplementedError

    def finish(self, request: int) -> None:
        """Nothing more comes of this request; what it said stays until it is evicted."""
        raise NotImplementedError

    def evict(self) -> None:
        """Forget the oldest request."""
        raise NotImplementedError

    def count(self, tokens: Sequence[int]) -> int:
        """Occurrences of up to `depth` tokens."""
        raise NotImplementedError

    def speculate(
        self,
        context: Sequence[int],
        most: int = 64,
        *,
        factor: float = 1.0,
        offset: float = 0.0,
        floor: float = 0.1,
        tree: bool = False,
    ) -> Branches:
        """The best continuation over all match lengths p: at most factor * p + offset tokens, weights of `floor` or more.

        A node's weight is the product of count(child) / count(parent) along its path. A chain of the most frequent
        children, or with `tree` the nodes of the largest weights. The highest sum of weights wins, then the longer p.
        """
        raise NotImplementedError
