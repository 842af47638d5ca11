"""Suffix arrays of a corpus, in chunks: every place where the last tokens of a text occur (He et al. 2024, REST)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.branches import Branches


class SuffixArray:
    """8 bytes a token, read-only; loaded by memory map it may be larger than memory."""

    kind = "suffix-array"

    @classmethod
    def build(
        cls, documents: Iterable[Sequence[int]], chunk: int = 1 << 26, tell: Callable[[int], None] | None = None
    ) -> SuffixArray:
        """`chunk`: most tokens sorted at once. `tell` hears how many tokens are done."""
        raise NotImplementedError

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        raise NotImplementedError

    def find(self, context: Sequence[int], longest: int = 16, shortest: int = 2) -> tuple[int, list[tuple[int, int]]]:
        """How many last tokens occur, and for each chunk the range [low, high) of its suffixes that begin with them.

        At most `longest`; (0, []) if fewer than `shortest` do.
        """
        raise NotImplementedError

    def continuations(
        self, context: Sequence[int], length: int = 10, *, most: int = 5000, longest: int = 16, shortest: int = 2
    ) -> tuple[int, NDArray[np.int32]]:
        """How many last tokens were found, and what followed: (num, length), -1 after the end of a document.

        Of more than `most` places in a chunk, `most` spread evenly over the sorted suffixes.
        """
        raise NotImplementedError

    def branches(
        self,
        context: Sequence[int],
        num_nodes: int = 64,
        length: int = 10,
        *,
        most: int = 5000,
        longest: int = 16,
        shortest: int = 2,
    ) -> Branches:
        """The `num_nodes` most frequent beginnings of the continuations; weights are counts."""
        raise NotImplementedError
