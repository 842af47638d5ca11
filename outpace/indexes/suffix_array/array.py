"""Suffix array of a corpus, in chunks: finds all occurrences of the longest matching suffix of a context (He
et al. 2024, REST)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree
from outpace.indexes.compiled_loops import Tokens, as_tokens, compiled_loop
from outpace.indexes.store import Arrays, require, typed
from outpace.indexes.suffix_array.count_trie import count_trie
from outpace.indexes.suffix_array.sort import EMPTY, sort_suffixes

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
SEPARATOR = -1  # token id inserted after each document
MAX_CHUNK = 1 << 29  # tokens per chunk: positions of their bytes (up to 4 per token) are int32 when sorting


class SuffixArray:
    """Read-only suffix array of documents, 8 bytes per token.

    Loaded with `mapped=True` (memory map) it may be larger than main memory.
    """

    kind = "suffix-array"

    def __init__(self, text: Ints, suffixes: Ints, chunk_ends: Longs, metadata: Mapping[str, int]) -> None:
        self.text = text  # (n,) concatenated documents, each followed by a separator
        self.suffixes = (
            suffixes  # (n,) per chunk: positions relative to its start, sorted by the suffixes there
        )
        self.chunk_ends = chunk_ends  # (chunks,) end index of each chunk in `text` and `suffixes`
        self._metadata = dict(metadata)

    @classmethod
    def build(
        cls,
        documents: Iterable[Tokens],
        chunk: int = 1 << 25,
        *,
        on_progress: Callable[[int], None] | None = None,
        temporary_folder: Path | None = None,
    ) -> Self:
        """Build the index, sorting chunks of at most `chunk` tokens (about 30 bytes of memory per token of a
        chunk); sorted chunks go to unnamed temporary files in `temporary_folder`.

        A document longer than a chunk is split, and matches across the split are missed. `on_progress` is
        called with the number of tokens just sorted. Raises ValueError for a chunk size out of range.
        """
        if not 2 <= chunk <= MAX_CHUNK:
            raise ValueError(f"a chunk has between 2 and {MAX_CHUNK} tokens, not {chunk}")
        counts = {"tokens": 0, "documents": 0}
        ends = [0]
        folder = temporary_folder
        with TemporaryFile(dir=folder) as texts, TemporaryFile(dir=folder) as suffixes:
            for text in _chunks(_counted(documents, counts), chunk):
                ends.append(ends[-1] + len(text))
                text.tofile(texts)
                sort_suffixes(text).tofile(suffixes)
                if on_progress:
                    on_progress(int((text != SEPARATOR).sum()))
            texts.flush()
            suffixes.flush()
            # memory maps stay valid after their files are closed
            maps = [np.asarray(np.memmap(each, np.int32, mode="c")) for each in (texts, suffixes) if ends[-1]]
        text, order = maps or (EMPTY, EMPTY)
        return cls(text, order, np.array(ends[1:], np.int64), counts)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"text": self.text, "suffixes": self.suffixes, "chunk_ends": self.chunk_ends}

    @property
    def metadata(self) -> dict[str, int]:
        return self._metadata | {"chunks": len(self.chunk_ends)}

    @property
    def max_token(self) -> int:
        return int(self.text.max(initial=-1))

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.arrays.values())

    @classmethod
    def from_arrays(cls, arrays: Arrays, metadata: Mapping[str, int]) -> Self:
        """Build the index from saved arrays; ValueError for wrong shapes or chunk ends.

        Values of `text` and `suffixes`, which may be larger than memory, are not checked here: the compiled
        functions check each value that they read.
        """
        (text,) = typed(arrays, text=(None,))
        (suffixes,) = typed(arrays, suffixes=text.shape)
        (chunk_ends,) = typed(arrays, np.int64, chunk_ends=(None,))
        ends = np.concatenate([[0], chunk_ends])
        require((ends[:-1] < ends[1:]).all(), ends[-1] == len(text), metadata["tokens"] <= len(text))
        return cls(text, suffixes, chunk_ends, {name: metadata[name] for name in ("tokens", "documents")})

    def find(
        self, context: Tokens, max_ngram: int = 16, min_ngram: int = 2
    ) -> tuple[int, list[tuple[int, int]]]:
        """Longest suffix of the context with `min_ngram` to `max_ngram` tokens that occurs in the corpus.

        Returns its length and for each chunk the range [low, high), relative to the chunk, of sorted suffixes
        that begin with it; (0, []) if none occurs. Raises ValueError unless 1 <= min_ngram <= max_ngram.
        """
        matched, ranges = self._find(context, max_ngram, min_ngram)
        return matched, [(low, high) for low, high in ranges.tolist()] if matched else []

    def _find(self, context: Tokens, max_ngram: int, min_ngram: int) -> tuple[int, Longs]:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(
                f"matches of {min_ngram} to {max_ngram} tokens: give min_ngram >= 1 and "
                "max_ngram >= min_ngram"
            )
        ranges = np.zeros((len(self.chunk_ends), 2), np.int64)
        query = as_tokens(context[-max_ngram:])
        return int(_find(self.text, self.suffixes, self.chunk_ends, query, min_ngram, ranges)), ranges

    def continuations(
        self,
        context: Tokens,
        length: int = 10,
        *,
        max_occurrences: int = 5000,
        max_ngram: int = 16,
        min_ngram: int = 2,
    ) -> tuple[int, Ints]:
        """Length of the longest match, and (num, length) tokens after its occurrences, -1 after the end of a
        document.

        At most `max_occurrences` per chunk are used, spread evenly over the sorted suffixes.
        """
        matched, ranges = self._find(context, max_ngram, min_ngram)
        num = int(np.minimum(ranges[:, 1] - ranges[:, 0], max_occurrences).sum()) if matched else 0
        rows = np.full((num, length), SEPARATOR, np.int32)
        if num:
            _read(self.text, self.suffixes, self.chunk_ends, ranges, matched, max_occurrences, rows)
        return matched, rows

    def continuation_tree(
        self,
        context: Tokens,
        num_nodes: int = 64,
        length: int = 10,
        *,
        max_occurrences: int = 5000,
        max_ngram: int = 16,
        min_ngram: int = 2,
    ) -> CandidateTree:
        """Trie of the `num_nodes` most frequent prefixes of the continuations; weights are counts."""
        matched, rows = self.continuations(
            context, length, max_occurrences=max_occurrences, max_ngram=max_ngram, min_ngram=min_ngram
        )
        return count_trie(rows, num_nodes, matched) if matched else NO_CANDIDATES


def _counted(documents: Iterable[Tokens], counts: dict[str, int]) -> Iterator[Ints]:
    for document in documents:
        tokens = as_tokens(document)
        counts["documents"] += 1
        counts["tokens"] += len(tokens)
        yield tokens


def _chunks(documents: Iterable[Ints], size: int) -> Iterator[Ints]:
    """Concatenate documents, each followed by a separator, into chunks of at most `size` tokens."""
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


@compiled_loop
def _compare(text: Ints, start: int, position: int, end: int, query: Ints, first: int) -> int:
    """Compare the suffix at `position` of the chunk [start, end) with query[first:]: -1 less, 1 greater, 0 if
    the suffix begins with it; -1 also for negative positions."""
    if position < 0:
        return -1
    for index in range(first, len(query)):
        at = start + position + index - first
        if at >= end or text[at] < query[index]:
            return -1
        if text[at] > query[index]:
            return 1
    return 0


@compiled_loop
def _bound(
    text: Ints, suffixes: Ints, start: int, end: int, query: Ints, first: int, low: int, beyond: int
) -> int:
    """Binary search in a chunk: index (from `low` on) of the first sorted suffix that is not less than
    query[first:] or begins with it (`beyond` 0), or that is greater (`beyond` 1)."""
    high = end - start
    while low < high:
        middle = (low + high) // 2
        if _compare(text, start, suffixes[start + middle], end, query, first) < beyond:
            low = middle + 1
        else:
            high = middle
    return low


@compiled_loop
def _find(text: Ints, suffixes: Ints, ends: Longs, query: Ints, min_ngram: int, ranges: Longs) -> int:
    """Fill `ranges` (chunks, 2) for the longest suffix of the query that occurs in any chunk; returns its
    length, 0 if none of at least `min_ngram` tokens occurs."""
    matched = 0
    for chunk in range(len(ends)):
        start, end = (ends[chunk - 1] if chunk > 0 else 0), ends[chunk]
        # binary search for the match length, from that of earlier chunks: if a suffix occurs, shorter ones do
        shortest, longest = max(matched, min_ngram), len(query)
        length, low = 0, 0
        probe = shortest
        while shortest <= longest:
            first = len(query) - probe
            bound = _bound(text, suffixes, start, end, query, first, 0, 0)
            if bound < end - start and _compare(text, start, suffixes[start + bound], end, query, first) == 0:
                length, low = probe, bound
                shortest = probe + 1
            else:
                longest = probe - 1
            probe = (shortest + longest + 1) // 2
        if length > matched:
            for other in range(chunk):
                ranges[other, 0], ranges[other, 1] = 0, 0
            matched = length
        if length > 0:
            ranges[chunk, 0] = low
            ranges[chunk, 1] = _bound(text, suffixes, start, end, query, len(query) - length, low, 1)
    return matched


@compiled_loop
def _read(
    text: Ints, suffixes: Ints, ends: Longs, ranges: Longs, matched: int, max_occurrences: int, rows: Ints
) -> None:
    """Fill `rows` (num, length) with the tokens after the match, for up to `max_occurrences` per range."""
    row = 0
    for chunk in range(len(ends)):
        start, end = (ends[chunk - 1] if chunk > 0 else 0), ends[chunk]
        low, num = ranges[chunk, 0], ranges[chunk, 1] - ranges[chunk, 0]
        num_read = min(num, max_occurrences)
        for index in range(num_read):
            # max: negative positions occur only in damaged files
            at = start + max(suffixes[start + low + index * num // num_read], 0) + matched
            for column in range(min(rows.shape[1], end - at)):
                if text[at + column] < 0:
                    break
                rows[row, column] = text[at + column]
            row += 1
