"""How often each token occurs in texts, for draft models that draft frequent tokens only.

Letters: K different tokens that were counted, S special tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.compiled_loops import Tokens, as_tokens, grown
from outpace.indexes.store import Arrays, in_range, require, typed

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


class TokenCounts:
    """Token ids by falling count, with their counts, and special tokens that are kept whatever their count,
    such as the end of a turn."""

    kind = "token-counts"

    def __init__(self, ids: Ints, counts: Longs, special: Ints) -> None:  # (K,), (K,), (S,)
        self.ids, self.counts, self.special = ids, counts, special

    @classmethod
    def build(
        cls,
        documents: Iterable[Tokens],
        special: Sequence[int] = (),
        on_progress: Callable[[int], None] | None = None,
    ) -> Self:
        """Count the tokens of the documents. Of tokens with equal counts the one with the lower id is first.
        `on_progress` is called with the number of tokens just read."""
        counts = np.zeros(0, np.int64)
        for document in documents:
            tokens = as_tokens(document)
            counts = grown(counts, int(tokens.max(initial=-1)) + 1)
            np.add.at(counts, tokens, 1)
            if on_progress:
                on_progress(len(tokens))
        ids = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        return cls(ids.astype(np.int32), counts[ids], np.unique(np.array(special, np.int32)))

    @classmethod
    def by_id(cls) -> Self:
        """Counts of no text: tokens are ranked by their ids."""
        return cls.build(())

    def kept(self, size: int, vocab: int, special: Sequence[int] = ()) -> list[int]:
        """The `size` most frequent of `vocab` tokens, most frequent first; those that were not counted follow
        in the order of their ids. Special tokens, of these counts and further ones, take the places of the
        rarest. ValueError for a size below 1 or below the number of special tokens."""
        always = dict.fromkeys([*self.special.tolist(), *special])
        if size < (least := max(1, len(always))):
            why = ", the number of special tokens, which are always kept" if always else ""
            raise ValueError(f"size is {size}: use at least {least}{why}")
        ranked = self.ids.tolist()
        if size > len(ranked):
            ranked += np.setdiff1d(np.arange(vocab), self.ids)[: size - len(ranked)].tolist()
        kept = ranked[:size]
        missing = [token for token in always if token not in set(kept)]
        places = [place for place in range(len(kept) - 1, -1, -1) if kept[place] not in always]
        for token, place in zip(missing, places, strict=False):
            kept[place] = token
        return kept

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"ids": self.ids, "counts": self.counts, "special": self.special}

    @property
    def metadata(self) -> dict[str, int]:
        return {"tokens": int(self.counts.sum()), "different_tokens": len(self.ids)}

    @property
    def max_token(self) -> int:
        return max(int(self.ids.max(initial=-1)), int(self.special.max(initial=-1)))

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.arrays.values())

    @classmethod
    def from_arrays(cls, arrays: Arrays, metadata: Mapping[str, int]) -> Self:
        ids, special = typed(arrays, ids=(None,), special=(None,))
        (counts,) = typed(arrays, np.int64, counts=(len(ids),))
        if not len(ids):
            raise ValueError("it counts no tokens: build it again from texts with `outpace index build`")
        falling = (np.diff(counts) < 0) | ((np.diff(counts) == 0) & (np.diff(ids) > 0))
        require(
            in_range(ids, 0, np.inf),
            in_range(special, 0, np.inf),
            in_range(counts, 1, np.inf),
            bool(falling.all()),
            len(np.unique(ids)) == len(ids),
            len(np.unique(special)) == len(special),
        )
        return cls(ids, counts, special)
