"""Trigram table of a corpus whose weights adapt to the generated text (Liu et al. 2025, ADED).

Unlike the table of probabilities after n-grams (STAND), which has rows within rows and is cleared when it is
full, this one replaces single pairs, the oldest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.compiled_loops import Tokens, as_tokens, compiled_loop, grown
from outpace.indexes.hash_map import HashMap, find, put, remove
from outpace.indexes.store import Arrays, in_range, require, typed

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]
FREE = -1  # token id of an unused column
MAX_CAPACITY = 1 << 30
MAX_WEIGHT = 1e6  # accepted in a file; real weights are at most 1 (frequencies) or the cap of `adapt`


class TrigramTable:
    """Hash map from token pairs to up to `width` next tokens with weights, initially conditional frequencies.

    Pairs of the corpus are permanent; of the pairs added later only the newest `capacity` are kept.
    """

    kind = "trigrams"

    def __init__(self, width: int = 12, capacity: int = 1 << 16) -> None:
        if width < 1 or not 1 <= capacity <= MAX_CAPACITY:
            raise ValueError(
                f"a trigram table of width {width} for {capacity} pairs: "
                f"give 1 or more of both, and at most {MAX_CAPACITY} pairs"
            )
        self.capacity = capacity
        self.pairs = np.zeros(0, np.int64)  # (R,) first token << 32 | second token
        self.tokens = np.zeros((0, width), np.int32)  # next tokens by falling weight, then by id; -1: unused
        self.weights = np.zeros((0, width), np.float32)
        self.map = HashMap.empty(0)  # pair -> row in `pairs`, `tokens` and `weights`
        self.counts = np.zeros(2, np.int64)  # number of permanent pairs, and of pairs ever added later

    @classmethod
    def build(
        cls,
        documents: Iterable[Tokens],
        width: int = 12,
        capacity: int = 1 << 16,
        on_progress: Callable[[int], None] | None = None,
    ) -> Self:
        """Build a table with the `width` most frequent next tokens of each pair in the documents.

        `on_progress` is called with the number of tokens just read.
        """
        table = cls(width, capacity)
        pairs, thirds = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
        for document in documents:
            tokens = as_tokens(document)
            pairs.append((tokens[:-2].astype(np.int64) << 32) | tokens[1:-1])
            thirds.append(tokens[2:])
            if on_progress:
                on_progress(len(tokens))
        table._count(np.concatenate(pairs), np.concatenate(thirds))
        return table

    def _count(self, pairs: Longs, thirds: Ints) -> None:
        order = np.lexsort((thirds, pairs))
        pairs, thirds = pairs[order], thirds[order]
        first = np.flatnonzero((np.diff(pairs, prepend=-1) != 0) | (np.diff(thirds, prepend=-1) != 0))
        counts = np.diff(first, append=len(pairs))
        pairs, thirds = pairs[first], thirds[first]
        self.pairs, row = np.unique(pairs, return_inverse=True)
        total = np.bincount(row, counts, len(self.pairs))
        order = np.lexsort((thirds, -counts, row))
        row, thirds, counts = row[order], thirds[order], counts[order]
        rank = np.arange(len(row)) - np.searchsorted(row, row)
        kept = rank < self.tokens.shape[1]
        shape = len(self.pairs), self.tokens.shape[1]
        self.tokens, self.weights = np.full(shape, FREE, np.int32), np.zeros(shape, np.float32)
        self.tokens[row[kept], rank[kept]] = thirds[kept]
        self.weights[row[kept], rank[kept]] = (counts / total[row])[kept]
        self.counts[0] = len(self.pairs)
        self.map = HashMap.enumerated(self.pairs)

    def __len__(self) -> int:
        """Number of stored pairs."""
        permanent, added = self.counts.tolist()
        return permanent + min(added, self.capacity)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        size = len(self)
        return {
            "pairs": self.pairs[:size],
            "tokens": self.tokens[:size],
            "weights": self.weights[:size],
            "counts": self.counts,
        }

    @property
    def metadata(self) -> dict[str, int]:
        return {"pairs": len(self), "capacity": self.capacity}

    @property
    def max_token(self) -> int:
        size = len(self)
        second_tokens = self.pairs[:size] & 0xFFFFFFFF
        return max(int(self.tokens[:size].max(initial=-1)), int(second_tokens.max(initial=-1)))

    @property
    def nbytes(self) -> int:
        arrays = (self.pairs, self.tokens, self.weights, *self.map, self.counts)
        return sum(each.nbytes for each in arrays)

    @classmethod
    def from_arrays(cls, arrays: Arrays, metadata: Mapping[str, int]) -> Self:
        (tokens,) = typed(arrays, tokens=(None, None))
        (weights,) = typed(arrays, np.float32, weights=tokens.shape)
        pairs, counts = typed(arrays, np.int64, pairs=(len(tokens),), counts=(2,))
        require(1 <= tokens.shape[1] <= 1 << 16, in_range(counts, 0, 1 << 62))
        index = cls(tokens.shape[1], metadata["capacity"])
        index.pairs, index.tokens, index.weights, index.counts = pairs, tokens, weights, counts
        used = tokens != FREE
        require(
            len(index) == len(pairs),
            in_range(pairs >> 32, 0, 1 << 31) and in_range(pairs & 0xFFFFFFFF, 0, 1 << 31),
            len(np.unique(pairs)) == len(pairs),
            in_range(tokens, FREE, np.inf),
            (used[:, :-1] >= used[:, 1:]).all(),  # unused columns come last
            # negative or NaN weights would break the comparisons of the search
            in_range(weights, 0, MAX_WEIGHT) and (weights[:, :-1] >= weights[:, 1:]).all(),
        )
        index.map = HashMap.enumerated(pairs)
        return index

    def adapt(self, context: Tokens, last: int = 16, step: float = 0.04, cap: float = 3.0) -> None:
        """Add `step`, up to a weight of `cap`, to each trigram in the `last` tokens of the context; weights
        are not normalized."""
        tokens = as_tokens(context[max(len(context) - last, 0) :])
        self._reserve(len(tokens))
        # round to float32 like the stored weights, so that equal weights compare equal
        step, cap = float(np.float32(step)), float(np.float32(cap))
        arrays = self.pairs, self.tokens, self.weights, self.counts
        _adapt(*self.map, *arrays, tokens, step, cap, self.capacity)

    def add(self, other: TrigramTable, cap: float = 3.0) -> None:
        """Add the weights of another table to this one; sums are limited to `cap`.

        Token pairs are added in the order in which the other table got them: its newest are evicted last.
        """
        permanent, added = other.counts.tolist()
        size = len(other)
        self._reserve(size)
        _add(
            *self.map,
            self.pairs,
            self.tokens,
            self.weights,
            self.counts,
            other.pairs,
            other.tokens,
            other.weights,
            permanent + added - size,
            size,
            permanent,
            float(np.float32(cap)),
            self.capacity,
        )

    def _reserve(self, more: int) -> None:
        """Enlarge the arrays so that `more` further token pairs (first and second token of trigrams) fit."""
        permanent, added = self.counts.tolist()
        rows = permanent + min(added + more, self.capacity)
        self.map = self.map.grown(rows)
        if rows > len(self.pairs):
            limit = permanent + self.capacity
            self.pairs = grown(self.pairs, rows, limit=limit)
            self.tokens = grown(self.tokens, rows, FREE, limit)
            self.weights = grown(self.weights, rows, limit=limit)

    def successors(self, first: int, second: int) -> list[tuple[int, float]]:
        """(token, weight) of the next tokens after the pair (first, second), by falling weight."""
        row = int(find(*self.map, first << 32 | second))
        if row < 0:
            return []
        tokens, weights = self.tokens[row].tolist(), self.weights[row].tolist()
        return [each for each in zip(tokens, weights, strict=True) if each[0] != FREE]


@compiled_loop
def _adapt(
    keys: Longs,
    values: Ints,
    pairs: Longs,
    tokens: Ints,
    weights: Floats,
    counts: Longs,
    context: Ints,
    step: float,
    cap: float,
    capacity: int,
) -> None:
    for index in range(2, len(context)):
        pair = (int(context[index - 2]) << 32) | context[index - 1]
        row = _row(keys, values, pairs, tokens, weights, counts, pair, capacity)
        _increase(tokens, weights, row, context[index], step, cap)


@compiled_loop
def _add(
    keys: Longs,
    values: Ints,
    pairs: Longs,
    tokens: Ints,
    weights: Floats,
    counts: Longs,
    other_pairs: Longs,
    other_tokens: Ints,
    other_weights: Floats,
    first: int,
    size: int,
    permanent: int,
    cap: float,
    capacity: int,
) -> None:
    for index in range(size):
        # the added pairs are a ring buffer, so in a full table the oldest pair need not be in the first row
        other = index if index < permanent else permanent + (first + index - permanent) % (size - permanent)
        row = _row(keys, values, pairs, tokens, weights, counts, int(other_pairs[other]), capacity)
        for column in range(other_tokens.shape[1]):
            token = other_tokens[other, column]
            if token != FREE:
                _increase(tokens, weights, row, token, float(other_weights[other, column]), cap)


@compiled_loop
def _row(
    keys: Longs,
    values: Ints,
    pairs: Longs,
    tokens: Ints,
    weights: Floats,
    counts: Longs,
    pair: int,
    capacity: int,
) -> int:
    """Row of a pair; a new pair gets an empty row, in a full table that of the oldest added pair, which is
    removed."""
    row = find(keys, values, pair)
    if row < 0:
        row = counts[0] + counts[1] % capacity
        if counts[1] >= capacity:
            remove(keys, values, int(pairs[row]))
        counts[1] += 1
        pairs[row] = pair
        put(keys, values, pair, row)
        for column in range(tokens.shape[1]):
            tokens[row, column], weights[row, column] = FREE, 0.0
    return row


@compiled_loop
def _increase(tokens: Ints, weights: Floats, row: int, token: int, step: float, cap: float) -> None:
    """Add `step` (up to `cap`) to the weight of a token and keep the row sorted.

    A new token takes an unused column, else the last one if its weight is smaller (or equal, with a larger
    token id); otherwise it is dropped.
    """
    last = tokens.shape[1] - 1
    column = 0
    while column < last and tokens[row, column] != token and tokens[row, column] != FREE:
        column += 1
    if tokens[row, column] == token:
        weights[row, column] = min(weights[row, column] + step, cap)
    else:
        weight = min(step, cap)
        if tokens[row, column] != FREE and (
            weights[row, column] > weight or (weights[row, column] == weight and tokens[row, column] < token)
        ):
            return
        tokens[row, column], weights[row, column] = token, weight
    while column > 0 and (
        weights[row, column - 1] < weights[row, column]
        or (
            weights[row, column - 1] == weights[row, column] and tokens[row, column - 1] > tokens[row, column]
        )
    ):
        other_token, other_weight = tokens[row, column - 1] + 0, weights[row, column - 1] + 0
        tokens[row, column - 1], weights[row, column - 1] = tokens[row, column], weights[row, column]
        tokens[row, column], weights[row, column] = other_token, other_weight
        column -= 1
