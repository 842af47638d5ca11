"""Mean of the target's next-token probabilities per n-gram (Song et al. 2025, STAND)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outpace.core.tree import Shape
from outpace.indexes.candidates import CandidateTree, parents_and_ranks
from outpace.indexes.compiled_loops import Tokens, as_tokens, compiled_loop, grown
from outpace.indexes.hash_map import HashMap, find, put

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
FREE = -1  # token id of an unused column
SHORTEST, LONGEST = 2, 64  # limits of max_ngram, in tokens
MAX_WIDTH = 1 << 16
MAX_CAPACITY = 1 << 30  # the upper 32 bits of a key are a row number, or `capacity` + a token id


class NGramProbabilities:
    """Hash map from n-grams of 2 to `max_ngram` tokens to up to `width` next tokens with mean probabilities.

    Key of an n-gram: row << 32 | first token, where row is that of the n-gram without its first token; for
    n = 2 it is `capacity` + the second token. When `capacity` n-grams are stored, new ones are ignored until
    `clear`.
    """

    def __init__(self, max_ngram: int = 4, width: int = 10, capacity: int = 1 << 18) -> None:
        if not SHORTEST <= max_ngram <= LONGEST:
            raise ValueError(f"n-grams of up to {max_ngram} tokens: give {SHORTEST} to {LONGEST}")
        if not (1 <= width <= MAX_WIDTH and 1 <= capacity <= MAX_CAPACITY):
            raise ValueError(
                f"{width} next tokens of {capacity} n-grams: "
                f"give 1 to {MAX_WIDTH} tokens and 1 to {MAX_CAPACITY} n-grams"
            )
        self.max_ngram, self.width, self.capacity = max_ngram, width, capacity
        self.clear()

    def clear(self) -> None:
        """Remove all n-grams and free their memory."""
        self.map = HashMap.empty(16)  # key of an n-gram -> its row in `tokens`, `means` and `visits`
        self.tokens = np.full((16, self.width), FREE, np.int32)  # next tokens, by falling mean, then by id
        self.means = np.zeros((16, self.width), np.float32)  # mean target probability of each of `tokens`
        self.visits = np.zeros(16, np.int32)  # number of observations averaged in each row
        self.size = np.zeros(1, np.int32)  # number of rows; an array that compiled functions can write

    def __len__(self) -> int:
        """Number of stored n-grams."""
        return int(self.size[0])

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.tokens, self.means, self.visits, *self.map, self.size))

    def update(
        self,
        tokens: Tokens,
        ids: Sequence[Sequence[int]] | NDArray[Any],
        probs: Sequence[Sequence[float]] | NDArray[Any],
    ) -> None:
        """Update the means with the target's top-K probabilities at the last n positions of a text.

        tokens: (T,) the text; ids and probs: (n, K) most probable next tokens after each of the last n
        tokens, K <= width. The k-th observation of an n-gram has weight 1 / k in the running mean, where
        missing tokens count as probability 0; the top `width` tokens are kept. ValueError for wrong shapes.
        """
        num = len(ids)
        if not num:
            return
        new_ids, new_probs = np.ascontiguousarray(ids, np.int32), np.ascontiguousarray(probs, np.float64)
        if (
            new_ids.ndim != 2
            or new_ids.shape != new_probs.shape
            or new_ids.shape[1] > self.width
            or num > len(tokens)
        ):
            raise ValueError(
                f"observations are two arrays (n, K) with n <= {len(tokens)} tokens and K <= {self.width}, "
                f"not {new_ids.shape} and {new_probs.shape}"
            )
        text = as_tokens(tokens[max(len(tokens) - num - self.max_ngram + 1, 0) :])
        rows = min(len(self) + num * (self.max_ngram - 1), self.capacity)
        self.tokens, self.means = grown(self.tokens, rows, FREE), grown(self.means, rows)
        self.visits, self.map = grown(self.visits, rows), self.map.grown(rows)
        table = self.tokens, self.means, self.visits, self.size
        scratch = np.zeros(2 * self.width, np.int32), np.zeros(2 * self.width, np.float64)
        _update(*self.map, *table, text, new_ids, new_probs, self.max_ngram, self.capacity, *scratch)

    def lookup(self, tokens: Tokens) -> tuple[int, list[int], list[float]]:
        """Longest stored n-gram that is a suffix of a text: n, its next tokens and their mean probabilities;
        (0, [], []) if there is none."""
        length, row = _longest_ngram(*self.map, as_tokens(tokens[-self.max_ngram :]), self.capacity)
        if not length:
            return 0, [], []
        ids = self.tokens[row].tolist()
        size = ids.index(FREE) if FREE in ids else len(ids)
        return length, ids[:size], self.means[row, :size].tolist()

    def rows(self, texts: Sequence[Sequence[int]]) -> Ints:
        """(M,) row of the longest stored n-gram that is a suffix of each text, -1 if there is none.

        texts: (M, max_ngram) last tokens of each text, padded with -1 on the left.
        """
        result = np.full(len(texts), FREE, np.int32)
        if len(texts):
            _rows(*self.map, np.array(texts, np.int32), self.capacity, result)
        return result

    def draft(self, tokens: Tokens, shape: Shape) -> CandidateTree:
        """Draft tree of fixed shape: the r-th child of a node is the token with the r-th largest mean after
        the text up to that node.

        Nodes below a text without a stored n-gram are omitted. The weight of a node is the product of the
        means along its path.
        """
        text = tokens[-self.max_ngram :]
        num = len(shape.parents)
        texts = np.full((num + 1, self.max_ngram), FREE, np.int32)
        texts[0, self.max_ngram - len(text) :] = text
        nodes, weights = np.empty((num, 2), np.int32), np.empty(num, np.float64)
        index_of = np.full(num + 1, FREE, np.int32)
        template = parents_and_ranks(shape), texts, index_of
        size = int(_fill(*self.map, self.tokens, self.means, self.capacity, *template, nodes, weights))
        drafted, parents = nodes[:size].T.tolist()
        return CandidateTree(drafted, parents, weights[:size].tolist(), 1 if size else 0)


@compiled_loop
def _longest_ngram(keys: Longs, values: Ints, tokens: Ints, capacity: int):  # -> length, row
    """Length and row of the longest stored n-gram that is a suffix of `tokens`; (0, -1) if there is none."""
    length, row = 0, -1
    above = capacity + tokens[len(tokens) - 1] if len(tokens) > 0 else 0
    for back in range(2, len(tokens) + 1):
        below = find(keys, values, (above << 32) | tokens[len(tokens) - back])
        if below < 0:
            break
        length, row, above = back, below, below
    return length, row


@compiled_loop
def _rows(keys: Longs, values: Ints, texts: Ints, capacity: int, result: Ints) -> None:
    for index in range(len(result)):
        result[index] = _row(keys, values, texts, index, capacity)


@compiled_loop
def _row(keys: Longs, values: Ints, texts: Ints, index: int, capacity: int) -> int:
    """Row of the longest stored n-gram that is a suffix of texts[index], -1 if there is none."""
    last, row = texts.shape[1] - 1, -1
    above = capacity + texts[index, last]
    for back in range(1, last + 1):
        token = texts[index, last - back]
        below = find(keys, values, (above << 32) | token) if token >= 0 else -1
        if below < 0:
            break
        row = above = below
    return row


@compiled_loop
def _fill(
    keys: Longs,
    values: Ints,
    tokens: Ints,
    means: Floats,
    capacity: int,
    shape: Ints,
    texts: Ints,
    index_of: Ints,
    nodes: Ints,
    weights: Doubles,
) -> int:
    """Fill `nodes` (S, 2: token, parent) and `weights` (S,) of the draft tree; returns its number of nodes.

    shape: (S, 2) parent and rank of each node; texts: (S + 1, max_ngram) last tokens up to each node, on
    entry only those of the root; index_of: (S + 1,) node of the shape -> row of `nodes`, -1: omitted.
    """
    size, last = 0, texts.shape[1] - 1
    for node in range(len(shape)):
        above, rank = shape[node, 0], shape[node, 1]
        if above > 0 and index_of[above] < 0:
            continue
        row = _row(keys, values, texts, above, capacity)
        token = tokens[row, rank] + 0 if row >= 0 and rank < tokens.shape[1] else -1
        if token < 0:
            continue
        parent = index_of[above] + 0
        nodes[size, 0], nodes[size, 1] = token, parent
        weights[size] = means[row, rank] * (weights[parent] if parent >= 0 else 1.0)
        for column in range(last):
            texts[node + 1, column] = texts[above, column + 1]
        texts[node + 1, last] = token
        index_of[node + 1] = size
        size += 1
    return size


@compiled_loop
def _update(
    keys: Longs,
    values: Ints,
    tokens: Ints,
    means: Floats,
    visits: Ints,
    size: Ints,
    text: Ints,
    ids: Ints,
    probs: Doubles,
    max_ngram: int,
    capacity: int,
    union: Ints,
    sums: Doubles,
) -> None:
    for index in range(len(ids)):
        end = len(text) - len(ids) + index
        above = capacity + text[end]
        for back in range(1, min(max_ngram, end + 1)):
            key = (above << 32) | text[end - back]
            row = find(keys, values, key)
            if row < 0:
                if size[0] >= capacity:
                    break
                row = size[0] + 0
                size[0] += 1
                put(keys, values, key, row)
            _average(tokens, means, visits, row, ids, probs, index, union, sums)
            above = row


@compiled_loop
def _average(
    tokens: Ints,
    means: Floats,
    visits: Ints,
    row: int,
    ids: Ints,
    probs: Doubles,
    index: int,
    union: Ints,
    sums: Doubles,
) -> None:
    """Update the running means of a row with the observation ids[index], probs[index].

    union and sums: scratch arrays of twice the row's width.
    """
    k, size, width = visits[row] + 0, 0, tokens.shape[1]
    while size < width and tokens[row, size] != FREE:
        union[size], sums[size] = tokens[row, size], k / (k + 1) * means[row, size]
        size += 1
    old = size
    for column in range(ids.shape[1]):
        slot = 0
        while slot < old and union[slot] != ids[index, column]:
            slot += 1
        if slot == old:
            slot = size
            union[size], sums[size] = ids[index, column], 0.0
            size += 1
        sums[slot] += probs[index, column] / (k + 1)
    visits[row] = k + 1
    for rank in range(min(size, width)):  # partial selection sort: the top `width`
        best = rank
        for other in range(rank + 1, size):
            if sums[other] > sums[best] or (sums[other] == sums[best] and union[other] < union[best]):
                best = other
        token, mean = union[best] + 0, sums[best] + 0.0
        union[best], sums[best] = union[rank], sums[rank]
        tokens[row, rank], means[row, rank] = token, mean
