"""The target's mean probabilities after n-grams it has read (Song et al. 2025, STAND)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from outpace.core.tree import Shape
from outpace.indexes.candidates import Candidates, template
from outpace.indexes.compiled_loops import Tokens, as_tokens, grown, loop
from outpace.indexes.store import damaged, expect, within
from outpace.indexes.tables.hash_map import HashMap, find, put

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]
FREE = -1  # a place in a row without a token
SHORTEST = 2


class NGramProbabilities:
    """n-grams of 2 to `longest` tokens -> up to `width` next tokens with mean probabilities.

    At most `room` n-grams: when they are used up, no new ones are taken until `clear`.
    """

    kind = "logit-ngrams"

    def __init__(self, max_ngram: int = 4, width: int = 10, room: int = 1 << 18) -> None:
        if max_ngram < SHORTEST or width < 1 or not 1 <= room <= 1 << 30:
            raise ValueError(
                "logit n-grams are of 2 tokens or more, with a place for what follows, and up to 2^30"
            )
        self.max_ngram, self.width, self.room = max_ngram, width, room
        self.clear()

    def clear(self) -> None:
        """Forget all n-grams, and give back their memory."""
        self.map = HashMap.empty(16)  # n-gram without its first token, and that token -> row
        self.tokens = np.full(
            (16, self.width), FREE, np.int32
        )  # by falling probability, of equal ones by token
        self.means = np.zeros((16, self.width), np.float32)
        self.visits = np.zeros(16, np.int32)
        self.known = np.zeros(1, np.int32)  # rows in use

    def __len__(self) -> int:
        """n-grams in use."""
        return int(self.known[0])

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        keys, values = self.map
        return {
            "tokens": self.tokens,
            "means": self.means,
            "visits": self.visits,
            "keys": keys,
            "values": values,
            "known": self.known,
        }

    @property
    def facts(self) -> dict[str, int]:
        return {"ngrams": len(self), "max_ngram": self.max_ngram, "room": self.room}

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.arrays.values())

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, int]) -> Self:
        tokens, values, known = expect(arrays, tokens=(None, None), values=(None,), known=(1,))
        found = cls(facts["max_ngram"], tokens.shape[1], facts["room"])
        found.tokens, found.known = tokens, known
        (found.visits,) = expect(arrays, visits=(len(tokens),))
        (found.means,) = expect(arrays, np.float32, means=tokens.shape)
        (keys,) = expect(arrays, np.int64, keys=(len(values),))
        found.map = HashMap(keys, values)
        if not (
            0 <= len(found) <= min(len(tokens), found.room, found.map.room)
            and within(values[keys >= 0], len(found))
            and len(keys) & (len(keys) - 1) == 0
            and (keys < 0).any()
        ):
            raise damaged()
        return found

    def update(
        self,
        tokens: Tokens,
        ids: Sequence[Sequence[int]] | NDArray[Any],
        probs: Sequence[Sequence[float]] | NDArray[Any],
    ) -> None:
        """(T,) tokens; (n, K) likeliest tokens and their probabilities after each of the last n of them, K <= width.

        The k-th observation of an n-gram moves its mean by 1 / k over the union of tokens; then the top ones stay.
        """
        num = len(ids)
        seen, seen_probs = np.ascontiguousarray(ids, np.int32), np.ascontiguousarray(probs, np.float64)
        if not num:
            return
        if (
            seen.ndim != 2
            or seen.shape != seen_probs.shape
            or seen.shape[1] > self.width
            or num > len(tokens)
        ):
            raise ValueError(
                f"observations are two arrays (n, K) with n <= {len(tokens)} tokens and K <= {self.width}, "
                f"not {seen.shape} and {seen_probs.shape}"
            )
        read = as_tokens(tokens[max(len(tokens) - num - self.max_ngram + 1, 0) :])
        rows = min(len(self) + num * (self.max_ngram - 1), self.room)
        self.tokens, self.means = grown(self.tokens, rows, FREE), grown(self.means, rows)
        self.visits, self.map = grown(self.visits, rows), self.map.grown(rows)
        scratch = np.zeros(2 * self.width, np.int32), np.zeros(2 * self.width, np.float64)
        _update(
            *self.map,
            self.tokens,
            self.means,
            self.visits,
            self.known,
            read,
            seen,
            seen_probs,
            self.max_ngram,
            self.room,
            *scratch,
        )

    def lookup(self, tokens: Tokens) -> tuple[int, list[int], list[float]]:
        """The longest known n-gram at the end: n, its next tokens and their falling means; (0, [], []) if none is."""
        length, row = _max_ngram(*self.map, as_tokens(tokens[-self.max_ngram :]), self.room)
        if not length:
            return 0, [], []
        ids = self.tokens[row].tolist()
        size = ids.index(FREE) if FREE in ids else len(ids)
        return length, ids[:size], self.means[row, :size].tolist()

    def rows(self, texts: Sequence[Sequence[int]]) -> Ints:
        """Where `tokens` and `means` hold what follows each of these texts, all (M,) of `longest` tokens, those that
        are missing in front being -1; -1 where nothing is known."""
        found = np.full(len(texts), FREE, np.int32)
        if len(texts):
            _rows(*self.map, np.array(texts, np.int32), self.room, found)
        return found

    def draft(self, tokens: Tokens, shape: Shape) -> Candidates:
        """The nodes of a fixed tree: the r-th child of a node is the r-th likeliest token after the text up to it.

        What is below an n-gram that is not known is left out. A weight is the product of the means along the path.
        """
        text = tokens[-self.max_ngram :]
        filled, num = template(shape), len(shape.parents)
        texts = np.full((num + 1, self.max_ngram), FREE, np.int32)
        texts[0, self.max_ngram - len(text) :] = text
        nodes, weights = np.empty((num, 2), np.int32), np.empty(num, np.float64)
        places = np.full(num + 1, FREE, np.int32)
        size = int(
            _fill(*self.map, self.tokens, self.means, self.room, filled, texts, places, nodes, weights)
        )
        found, parents = nodes[:size].T.tolist()
        return Candidates(found, parents, weights[:size].tolist(), 1 if size else 0)


@loop
def _max_ngram(keys: Longs, values: Ints, tokens: Ints, room: int):  # -> (int, int)
    """Length and row of the longest known n-gram at the end."""
    length, row = 0, -1
    # an n-gram's key is the row of the n-gram behind its first token; single tokens stand beyond all rows
    above = room + tokens[len(tokens) - 1] if len(tokens) > 0 else 0
    for back in range(2, len(tokens) + 1):
        below = find(keys, values, (above << 32) | tokens[len(tokens) - back])
        if below < 0:
            break
        length, row, above = back, below, below
    return length, row


@loop
def _rows(keys: Longs, values: Ints, texts: Ints, room: int, found: Ints) -> None:
    for index in range(len(found)):
        found[index] = _row(keys, values, texts, index, room)


@loop
def _row(keys: Longs, values: Ints, texts: Ints, index: int, room: int) -> int:
    """Where the table has what follows one of these texts; -1 if it has nothing."""
    last, found = texts.shape[1] - 1, -1
    above = room + texts[index, last]
    for back in range(1, last + 1):
        token = texts[index, last - back]
        below = find(keys, values, (above << 32) | token) if token >= 0 else -1
        if below < 0:
            break
        found = above = below
    return found


@loop
def _fill(
    keys: Longs,
    values: Ints,
    tokens: Ints,
    means: Floats,
    room: int,
    template: Ints,
    texts: Ints,
    places: Ints,
    nodes: Ints,
    weights: NDArray[np.float64],
) -> int:
    """Fill (S, 2) tokens and parents, and weights, with the nodes of a template that are known; how many there are.

    texts: (S + 1, n) last tokens up to each node of the template, at first the root's; places: (S + 1,) where each
    stands among the nodes, -1: left out.
    """
    size, last = 0, texts.shape[1] - 1
    for node in range(len(template)):
        above, rank = template[node, 0], template[node, 1]
        if above > 0 and places[above] < 0:
            continue
        row = _row(keys, values, texts, above, room)
        token = tokens[row, rank] + 0 if row >= 0 and rank < tokens.shape[1] else -1
        if token < 0:
            continue
        parent = places[above] + 0
        nodes[size, 0], nodes[size, 1] = token, parent
        weights[size] = means[row, rank] * (weights[parent] if parent >= 0 else 1.0)
        for place in range(last):
            texts[node + 1, place] = texts[above, place + 1]
        texts[node + 1, last] = token
        places[node + 1] = size
        size += 1
    return size


@loop
def _update(
    keys: Longs,
    values: Ints,
    tokens: Ints,
    means: Floats,
    visits: Ints,
    known: Ints,
    text: Ints,
    ids: Ints,
    probs: NDArray[np.float64],
    max_ngram: int,
    room: int,
    union: Ints,
    sums: NDArray[np.float64],
) -> None:
    for index in range(len(ids)):
        end = len(text) - len(ids) + index
        above = room + text[end]
        for back in range(1, min(max_ngram, end + 1)):
            key = (above << 32) | text[end - back]
            row = find(keys, values, key)
            if row < 0:
                if known[0] >= room:
                    break
                row = known[0] + 0
                known[0] += 1
                put(keys, values, key, row)
            _average(tokens, means, visits, row, ids, probs, index, union, sums)
            above = row


@loop
def _average(
    tokens: Ints,
    means: Floats,
    visits: Ints,
    row: int,
    ids: Ints,
    probs: NDArray[np.float64],
    index: int,
    union: Ints,
    sums: NDArray[np.float64],
) -> None:
    """Move a row towards one observation."""
    k, size, width = visits[row] + 0, 0, tokens.shape[1]
    while size < width and tokens[row, size] != FREE:
        union[size], sums[size] = tokens[row, size], k / (k + 1) * means[row, size]
        size += 1
    old = size
    for column in range(ids.shape[1]):
        place = 0
        while place < old and union[place] != ids[index, column]:
            place += 1
        if place == old:
            place = size
            union[size], sums[size] = ids[index, column], 0.0
            size += 1
        sums[place] += probs[index, column] / (k + 1)
    visits[row] = k + 1
    for rank in range(min(size, width)):
        best = rank
        for other in range(rank + 1, size):
            if sums[other] > sums[best] or (sums[other] == sums[best] and union[other] < union[best]):
                best = other
        token, mean = union[best] + 0, sums[best] + 0.0
        union[best], sums[best] = union[rank], sums[rank]
        tokens[row, rank], means[row, rank] = token, mean
