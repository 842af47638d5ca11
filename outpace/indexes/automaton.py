"""A suffix automaton that grows with a text, and the longest end of it that occurred before (Hu et al. 2025, SAM)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Match(NamedTuple):
    """The longest end of a text that occurred earlier in it."""

    length: int  # tokens; 0: nothing
    start: int  # index of the token that followed its first occurrence


class SuffixAutomaton:
    """All substrings of one text in at most 2 states and 3 edges a token; constant time a token, amortised.

    Memory grows with the text and ends with the request that owns it; nothing is forgotten before.
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.extend(tokens)

    def __len__(self) -> int:
        """Tokens of the text."""
        raise NotImplementedError

    @property
    def num_states(self) -> int:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        raise NotImplementedError

    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the text: for each token the match moves first, so that the text never matches itself."""
        raise NotImplementedError

    def match(self, assumed: Sequence[int] = ()) -> Match:
        """The longest end that occurred earlier, if `assumed` came next; the text stays as it is."""
        raise NotImplementedError

    def following(self, most: int, assumed: Sequence[int] = ()) -> list[int]:
        """What followed the match, up to `most` tokens: of a shorter match where the longer has fewer to offer."""
        raise NotImplementedError
