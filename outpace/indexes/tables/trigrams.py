"""What follows two tokens, and how a text shifts it (Liu et al. 2025, ADED)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.compiled_loops import Tokens, as_tokens, loop
from outpace.indexes.store import damaged, expect, within
from outpace.indexes.tables.hash_map import HashMap, find, put, remove

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]
FREE = -1  # a place in a row without a token


class TrigramTable:
    """Pairs of tokens -> up to `width` next tokens with weights, conditional frequencies at first.

    Pairs of the corpus stay; of pairs met later the last `room` are kept.
    """

    kind = "trigrams"

    def __init__(self, width: int = 12, room: int = 1 << 16) -> None:
        if width < 1 or room < 1:
            raise ValueError(
                "a trigram table has at least one place for what follows a pair, and room for one pair"
            )
        self.room = room
        self.pairs = np.zeros(0, np.int64)  # (R,) first token << 32 | second token
        self.tokens = np.zeros((0, width), np.int32)  # by falling weight, of equal weights by token
        self.weights = np.zeros((0, width), np.float32)
        self.map = HashMap.empty(room)  # pair -> row
        self.known = np.zeros(2, np.int64)  # pairs that stay, and pairs that were added in all

    @classmethod
    def build(
        cls,
        documents: Iterable[Tokens],
        width: int = 12,
        room: int = 1 << 16,
        tell: Callable[[int], None] | None = None,
    ) -> Self:
        """The `width` most frequent third tokens of each pair. `tell` hears how many tokens were read."""
        table = cls(width, room)
        pairs, thirds = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
        for document in documents:
            tokens = as_tokens(document)
            pairs.append((tokens[:-2].astype(np.int64) << 32) | tokens[1:-1])
            thirds.append(tokens[2:])
            if tell:
                tell(len(tokens))
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
        self.known[0] = len(self.pairs)
        self.map = HashMap.empty(len(self.pairs) + self.room)
        _index(*self.map, self.pairs)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        keys, values = self.map
        return {
            "pairs": self.pairs,
            "tokens": self.tokens,
            "weights": self.weights,
            "keys": keys,
            "values": values,
            "known": self.known,
        }

    @property
    def facts(self) -> dict[str, int]:
        stay, added = self.known.tolist()
        return {"pairs": stay + min(added, self.room), "room": self.room}

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.arrays.values())

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, int]) -> Self:
        found = cls(1, facts["room"])
        found.tokens, values = expect(arrays, tokens=(None, None), values=(None,))
        found.pairs, keys, found.known = expect(
            arrays, np.int64, pairs=(None,), keys=(len(values),), known=(2,)
        )
        (found.weights,) = expect(arrays, np.float32, weights=found.tokens.shape)
        found.map = HashMap(keys, values)
        stay, added = found.known.tolist()
        if not (
            stay >= 0
            and added >= 0
            and len(found.pairs) == len(found.tokens) >= stay + min(added, found.room)
            and within(values[keys >= 0], len(found.pairs))
            and found.map.room >= stay + found.room
            and len(keys) & (len(keys) - 1) == 0
            and (keys < 0).any()
        ):
            raise damaged()
        return found

    def adapt(self, context: Tokens, last: int = 16, step: float = 0.04, cap: float = 3.0) -> None:
        """For each trigram in the last tokens: weight += step, at most cap; nothing is renormalised."""
        tokens = as_tokens(context[max(len(context) - last, 0) :])
        self._make_room(len(tokens))
        # as exact as weights are, so that equal ones compare equal
        step, cap = float(np.float32(step)), float(np.float32(cap))
        _adapt(*self.map, self.pairs, self.tokens, self.weights, self.known, tokens, step, cap, self.room)

    def add(self, other: TrigramTable, cap: float = 3.0) -> None:
        """Add the weights of another table, the pairs it met first first; each sum is at most `cap`."""
        stay, added = other.known.tolist()
        size = stay + min(added, other.room)
        self._make_room(size)
        _add(
            *self.map,
            self.pairs,
            self.tokens,
            self.weights,
            self.known,
            other.pairs,
            other.tokens,
            other.weights,
            stay + added - size,
            size,
            stay,
            float(np.float32(cap)),
            self.room,
        )

    def _make_room(self, more: int) -> None:
        stay, added = self.known.tolist()
        rows = stay + min(added + more, self.room)
        if rows > len(self.pairs):
            size = min(max(rows, 2 * len(self.pairs)), stay + self.room)
            self.pairs = _longer(self.pairs, size, 0)
            self.tokens = _longer(self.tokens, size, FREE)
            self.weights = _longer(self.weights, size, 0)

    def successors(self, first: int, second: int) -> list[tuple[int, float]]:
        """(token, weight) after these two tokens, by falling weight."""
        row = int(find(*self.map, first << 32 | second))
        if row < 0:
            return []
        tokens, weights = self.tokens[row].tolist(), self.weights[row].tolist()
        return [each for each in zip(tokens, weights, strict=True) if each[0] != FREE]


def _longer(array: NDArray[Any], size: int, fill: int) -> NDArray[Any]:
    return np.concatenate([array, np.full((size - len(array), *array.shape[1:]), fill, array.dtype)])


@loop
def _index(keys: Longs, values: Ints, pairs: Longs) -> None:
    for row in range(len(pairs)):
        put(keys, values, pairs[row], row)


@loop
def _adapt(
    keys: Longs,
    values: Ints,
    pairs: Longs,
    tokens: Ints,
    weights: Floats,
    known: Longs,
    context: Ints,
    step: float,
    cap: float,
    room: int,
) -> None:
    for index in range(2, len(context)):
        pair = (int(context[index - 2]) << 32) | context[index - 1]
        row = _row(keys, values, pairs, tokens, weights, known, pair, room)
        _raise(tokens, weights, row, context[index], step, cap)


@loop
def _add(
    keys: Longs,
    values: Ints,
    pairs: Longs,
    tokens: Ints,
    weights: Floats,
    known: Longs,
    other_pairs: Longs,
    other_tokens: Ints,
    other_weights: Floats,
    first: int,
    size: int,
    stay: int,
    cap: float,
    room: int,
) -> None:
    for index in range(size):
        # in a table that is full the newest pairs stand before the oldest
        other = index if index < stay else stay + (first + index - stay) % (size - stay)
        row = _row(keys, values, pairs, tokens, weights, known, int(other_pairs[other]), room)
        for place in range(other_tokens.shape[1]):
            if other_tokens[other, place] != FREE:
                _raise(
                    tokens, weights, row, other_tokens[other, place], float(other_weights[other, place]), cap
                )


@loop
def _row(
    keys: Longs, values: Ints, pairs: Longs, tokens: Ints, weights: Floats, known: Longs, pair: int, room: int
) -> int:
    """The row of a pair, an empty one if it is new."""
    row = find(keys, values, pair)
    if row < 0:
        row = known[0] + known[1] % room
        if known[1] >= room:
            remove(keys, values, int(pairs[row]))  # the pair that was added longest ago
        known[1] += 1
        pairs[row] = pair
        put(keys, values, pair, row)
        for place in range(tokens.shape[1]):
            tokens[row, place], weights[row, place] = FREE, 0.0
    return row


@loop
def _raise(tokens: Ints, weights: Floats, row: int, token: int, step: float, cap: float) -> None:
    """Give a token of a row more weight and move it up; a new one takes a free place, or that of the last."""
    last = tokens.shape[1] - 1
    place = 0
    while place < last and tokens[row, place] != token and tokens[row, place] != FREE:
        place += 1
    if tokens[row, place] == token:
        weights[row, place] = min(weights[row, place] + step, cap)
    else:
        weight = min(step, cap)
        if tokens[row, place] != FREE and (
            weights[row, place] > weight or (weights[row, place] == weight and tokens[row, place] < token)
        ):
            return
        tokens[row, place], weights[row, place] = token, weight
    while place > 0 and (
        weights[row, place - 1] < weights[row, place]
        or (weights[row, place - 1] == weights[row, place] and tokens[row, place - 1] > tokens[row, place])
    ):
        other_token, other_weight = tokens[row, place - 1] + 0, weights[row, place - 1] + 0
        tokens[row, place - 1], weights[row, place - 1] = tokens[row, place], weights[row, place]
        tokens[row, place], weights[row, place] = other_token, other_weight
        place -= 1
