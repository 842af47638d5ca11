"""Suffix arrays of a corpus, in chunks: every place where the last tokens of a text occur (He et al. 2024, REST)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.candidates import NOTHING, Candidates
from outpace.indexes.compiled_loops import Tokens, as_tokens, loop
from outpace.indexes.store import damaged, expect
from outpace.indexes.suffix_array.count_trie import count_trie
from outpace.indexes.suffix_array.sort import EMPTY, sort_suffixes

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
SEPARATOR = -1  # after each document
MOST = 1 << 29  # tokens of a chunk: their bytes are counted in int32


class SuffixArray:
    """8 bytes a token, read-only; loaded by memory map it may be larger than memory."""

    kind = "suffix-array"

    def __init__(self, text: Ints, places: Ints, ends: Longs, facts: Mapping[str, int]) -> None:
        self.text = text  # (n,) documents, each with a separator behind it
        self.places = places  # (n,) of each chunk its suffixes in order, as places in the chunk
        self.ends = ends  # (chunks,) where each chunk ends in both
        self._facts = dict(facts)

    @classmethod
    def build(
        cls,
        documents: Iterable[Tokens],
        chunk: int = 1 << 25,
        *,
        tell: Callable[[int], None] | None = None,
        scratch: Path | None = None,
    ) -> Self:
        """`chunk`: most tokens sorted at once, in about 30 bytes of memory each; what is sorted waits in files.

        A document longer than a chunk is cut, and what spans a cut is not found. `tell` hears of sorted tokens, and
        `scratch` is a folder for the files, which nobody sees.
        """
        if not 2 <= chunk <= MOST:
            raise ValueError(f"a chunk has between 2 and {MOST} tokens, not {chunk}")
        counts = {"tokens": 0, "documents": 0}
        ends = [0]
        with TemporaryFile(dir=scratch) as texts, TemporaryFile(dir=scratch) as places:
            for text in _chunks(_counted(documents, counts), chunk):
                ends.append(ends[-1] + len(text))
                text.tofile(texts)
                sort_suffixes(text).tofile(places)
                if tell:
                    tell(int((text != SEPARATOR).sum()))
            texts.flush()
            places.flush()
            # a map keeps what is in a file that is closed
            maps = [np.asarray(np.memmap(each, np.int32, mode="c")) for each in (texts, places) if ends[-1]]
        text, order = maps or (EMPTY, EMPTY)
        return cls(text, order, np.array(ends[1:], np.int64), counts)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"text": self.text, "places": self.places, "ends": self.ends}

    @property
    def facts(self) -> dict[str, int]:
        return self._facts | {"chunks": len(self.ends)}

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.arrays.values())

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, int]) -> Self:
        """What the arrays say is checked where it is read: they may be larger than memory."""
        text, places = expect(arrays, text=(None,), places=(len(arrays["text"]),))
        (ends,) = expect(arrays, np.int64, ends=(None,))
        if (np.diff(ends, prepend=0) <= 0).any() or ends[-1:].sum() != len(text):
            raise damaged()
        return cls(text, places, ends, {name: facts[name] for name in ("tokens", "documents")})

    def find(
        self, context: Tokens, max_ngram: int = 16, min_ngram: int = 2
    ) -> tuple[int, list[tuple[int, int]]]:
        """How many last tokens occur, and for each chunk the range [low, high) of its suffixes that begin with them.

        At most `longest`; (0, []) if fewer than `shortest` do.
        """
        matched, ranges = self._find(context, max_ngram, min_ngram)
        return matched, [(low, high) for low, high in ranges.tolist()] if matched else []

    def _find(self, context: Tokens, max_ngram: int, min_ngram: int) -> tuple[int, Longs]:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(
                f"matches of {min_ngram} to {max_ngram} tokens: give min_ngram >= 1 and max_ngram >= min_ngram"
            )
        ranges = np.zeros((len(self.ends), 2), np.int64)
        query = as_tokens(context[-max_ngram:])
        return int(_find(self.text, self.places, self.ends, query, min_ngram, ranges)), ranges

    def continuations(
        self, context: Tokens, length: int = 10, *, most: int = 5000, max_ngram: int = 16, min_ngram: int = 2
    ) -> tuple[int, Ints]:
        """How many last tokens were found, and what followed: (num, length), -1 after the end of a document.

        Of more than `most` places in a chunk, `most` spread evenly over the sorted suffixes.
        """
        matched, ranges = self._find(context, max_ngram, min_ngram)
        num = int(np.minimum(ranges[:, 1] - ranges[:, 0], most).sum()) if matched else 0
        rows = np.full((num, length), SEPARATOR, np.int32)
        if num:
            _read(self.text, self.places, self.ends, ranges, matched, most, rows)
        return matched, rows

    def branches(
        self,
        context: Tokens,
        num_nodes: int = 64,
        length: int = 10,
        *,
        most: int = 5000,
        max_ngram: int = 16,
        min_ngram: int = 2,
    ) -> Candidates:
        """The `num_nodes` most frequent beginnings of the continuations; weights are counts."""
        matched, rows = self.continuations(
            context, length, most=most, max_ngram=max_ngram, min_ngram=min_ngram
        )
        return count_trie(rows, num_nodes, matched) if matched else NOTHING


def _counted(documents: Iterable[Tokens], counts: dict[str, int]) -> Iterator[Ints]:
    for document in documents:
        tokens = as_tokens(document)
        counts["documents"] += 1
        counts["tokens"] += len(tokens)
        yield tokens


def _chunks(documents: Iterable[Ints], size: int) -> Iterator[Ints]:
    """Documents put together, a separator behind each, into texts of at most this size."""
    parts, used = list[Ints](), 0
    for document in documents:
        for start in range(0, len(document), size - 1):
            piece = document[start : start + size - 1]
            if used + len(piece) + 1 > size:
                yield np.concatenate(parts)
                parts, used = [], 0
            parts += [piece, np.array([SEPARATOR], np.int32)]
            used += len(piece) + 1
    if parts:
        yield np.concatenate(parts)


@loop
def _compare(text: Ints, start: int, place: int, end: int, query: Ints, first: int) -> int:
    """Whether the suffix at a place comes before what begins with query[first:], does so, or comes after: -1, 0, 1."""
    if place < 0:
        return -1
    for index in range(first, len(query)):
        at = start + place + index - first
        if at >= end or text[at] < query[index]:
            return -1
        if text[at] > query[index]:
            return 1
    return 0


@loop
def _bound(
    text: Ints, places: Ints, start: int, end: int, query: Ints, first: int, low: int, beyond: int
) -> int:
    """The first suffix from `low` on that does not come before the query; with `beyond` 1, that comes after it."""
    high = end - start
    while low < high:
        middle = (low + high) // 2
        if _compare(text, start, places[start + middle], end, query, first) < beyond:
            low = middle + 1
        else:
            high = middle
    return low


@loop
def _find(text: Ints, places: Ints, ends: Longs, query: Ints, min_ngram: int, ranges: Longs) -> int:
    """Fill (chunks, 2) ranges for the longest end of the query that occurs anywhere; its length."""
    matched = 0
    for chunk in range(len(ends)):
        start, end = (ends[chunk - 1] if chunk > 0 else 0), ends[chunk]
        # the length found elsewhere, or longer: if an end occurs, its shorter ends do
        least, most = max(matched, min_ngram), len(query)
        length, low = 0, 0
        probe = least
        while least <= most:
            first = len(query) - probe
            bound = _bound(text, places, start, end, query, first, 0, 0)
            if bound < end - start and _compare(text, start, places[start + bound], end, query, first) == 0:
                length, low = probe, bound
                least = probe + 1
            else:
                most = probe - 1
            probe = (least + most + 1) // 2
        if length > matched:
            for other in range(chunk):
                ranges[other, 0], ranges[other, 1] = 0, 0
            matched = length
        if length > 0:
            ranges[chunk, 0] = low
            ranges[chunk, 1] = _bound(text, places, start, end, query, len(query) - length, low, 1)
    return matched


@loop
def _read(text: Ints, places: Ints, ends: Longs, ranges: Longs, matched: int, most: int, rows: Ints) -> None:
    """Fill (num, length) with what follows at up to `most` places of each range."""
    row = 0
    for chunk in range(len(ends)):
        start, end = (ends[chunk - 1] if chunk > 0 else 0), ends[chunk]
        low, num = ranges[chunk, 0], ranges[chunk, 1] - ranges[chunk, 0]
        for index in range(min(num, most)):
            at = start + max(places[start + low + index * num // min(num, most)], 0) + matched
            for column in range(min(rows.shape[1], end - at)):
                if text[at + column] < 0:
                    break
                rows[row, column] = text[at + column]
            row += 1
