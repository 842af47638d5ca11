"""A suffix automaton of a corpus with counts, its edges by count (Hu et al. 2025, SAM Decoding's static part)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.branches import Branches


class Pointer(NamedTuple):
    """Where a request stands in the automaton: it has the longest end of the request that occurs in the corpus."""

    state: int = 0
    length: int = 0  # tokens matched


class StaticAutomaton:
    """All substrings of documents; read-only. A pointer moves in constant time a token, amortised."""

    kind = "suffix-automaton"

    @classmethod
    def build(cls, documents: Iterable[Sequence[int]], tell: Callable[[int], None] | None = None) -> StaticAutomaton:
        """`tell` hears how many tokens were added."""
        raise NotImplementedError

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        raise NotImplementedError

    def move(self, pointer: Pointer, tokens: Sequence[int]) -> Pointer:
        """Where a request stands after these tokens."""
        raise NotImplementedError

    def count(self, pointer: Pointer) -> int:
        """How often the matched tokens occur in the corpus; the number of tokens, if none are matched."""
        raise NotImplementedError

    def successors(self, pointer: Pointer, most: int = 8) -> list[tuple[int, int]]:
        """(token, count) of the up to 8 most frequent tokens after the matched ones, by falling count."""
        raise NotImplementedError

    def following(self, pointer: Pointer, most: int) -> list[int]:
        """Up to `most` tokens that followed the first occurrence, to the end of its document."""
        raise NotImplementedError

    def branches(self, pointer: Pointer, num_nodes: int = 60, per_depth: int = 8) -> Branches:
        """The likeliest continuations, best first: an edge has the share of its count in its state's."""
        raise NotImplementedError
