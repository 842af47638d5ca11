"""Suffix arrays and the trie of continuations against a search through the documents."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from outpace.indexes.suffix_array.array import SuffixArray
from outpace.indexes.suffix_array.count_trie import count_trie
from outpace.indexes.suffix_array.sort import by_bytes, by_doubling

Texts = Callable[..., list[list[int]]]
Count = Callable[[Sequence[Sequence[int]], Sequence[int]], int]


def found_plainly(
    documents: Sequence[Sequence[int]], context: Sequence[int], length: int, longest: int, shortest: int
) -> tuple[int, Counter[tuple[int, ...]]]:
    """What followed the longest known end, wherever it occurs."""
    for span in range(min(longest, len(context)), shortest - 1, -1):
        key = list(context[len(context) - span :])
        after = Counter(
            tuple(text[start + span : start + span + length])
            for text in documents
            for start in range(len(text) - span + 1)
            if list(text[start : start + span]) == key
        )
        if after:
            return span, after
    return 0, Counter()


@pytest.mark.parametrize("chunk", [1 << 25, 70])
def test_what_is_retrieved_is_what_a_search_finds(loops: str, texts: Texts, chunk: int) -> None:
    documents = texts(0, 30)
    index = SuffixArray.build(documents, chunk)
    assert (len(index.chunk_ends) > 1) == (chunk == 70)
    for context in texts(1, 60):
        for longest, shortest, length in ((16, 2, 10), (4, 1, 3)):
            matched, rows = index.continuations(context, length, max_ngram=longest, min_ngram=shortest)
            expected = found_plainly(documents, context, length, longest, shortest)
            got = Counter(tuple(token for token in row if token >= 0) for row in rows.tolist())
            assert (matched, got) == expected


def test_a_limited_number_of_occurrences_is_read_evenly_spread(loops: str) -> None:
    documents = [[7, 7, token] for token in range(100, 200)]
    index = SuffixArray.build(documents)
    matched, rows = index.continuations([7, 7], 1, max_occurrences=10)
    assert matched == 2
    assert rows[:, 0].tolist() == list(range(100, 200, 10))
    assert index.find([3, 7, 7])[1][0][1] - index.find([3, 7, 7])[1][0][0] == 100
    assert index.find([300, 7]) == (0, [])


def test_a_document_longer_than_a_chunk_is_cut(loops: str) -> None:
    index = SuffixArray.build([list(range(25))], 10)
    assert index.metadata == {"tokens": 25, "documents": 1, "chunks": 3}
    assert [index.find([token], min_ngram=1)[0] for token in range(26)] == [1] * 25 + [0]
    assert index.continuations([3, 4], 3)[1].tolist() == [[5, 6, 7]]
    assert index.find([8, 9]) == (0, [])  # between two chunks
    assert index.continuations([7, 8], 3)[1].tolist() == [[-1, -1, -1]]


def test_nothing_is_found_in_nothing(loops: str) -> None:
    for documents in ([], [[]], [[], [5]]):
        index = SuffixArray.build(documents)
        assert index.find([1, 2, 3]) == (0, [])
        assert index.continuation_tree([1, 2, 3]).tokens == []
        assert index.continuation_tree([], max_ngram=3, min_ngram=1).tokens == []


def test_positions_beyond_the_text_are_not_read(loops: str, texts: Texts) -> None:
    index = SuffixArray.build(texts(2, 5))
    for wrong in (-5, 1 << 30):
        index.suffixes = np.full(len(index.suffixes), wrong, np.int32)
        index.continuations([1, 2, 1], min_ngram=1)


@pytest.mark.parametrize("highest", [1, 3, 300, 70_000, 20_000_000])
def test_both_sorts_give_the_order_of_suffixes(highest: int) -> None:
    pytest.importorskip("pydivsufsort")
    rng = np.random.default_rng(highest)
    for size in (0, 1, 2, 3, 50, 400):
        text = rng.integers(-1, highest + 1, size).astype(np.int32)
        expected = sorted(range(size), key=lambda place: text[place:].tolist())
        assert by_bytes(text).tolist() == expected
        assert by_doubling(text).tolist() == expected
    assert by_doubling(np.zeros(300, np.int32)).tolist() == list(range(299, -1, -1))


@pytest.mark.parametrize("seed", range(5))
def test_the_trie_keeps_the_most_frequent_beginnings(loops: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 4, (60, 5)).astype(np.int32)
    for row in rows:
        row[rng.integers(0, 6) :] = -1
    counts = Counter(tuple(row[:n]) for row in rows.tolist() for n in range(1, 6) if -1 not in row[:n])
    for num_nodes in (0, 1, 7, 25, 10_000):
        found = count_trie(rows, num_nodes)
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(found.tokens, found.parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))  # a parent comes first
        assert len(set(paths)) == len(paths) == min(num_nodes, len(counts))
        assert found.weights == [counts[path] for path in paths]
        dropped = [count for path, count in counts.items() if path not in paths]
        assert not dropped or not paths or min(found.weights) >= max(dropped)
        best = sorted(counts, key=lambda path: (-counts[path], len(path), path))
        assert paths == best[:num_nodes]
        assert all(a >= b for a, b in pairwise(found.weights))


def test_branches_are_the_trie_of_continuations(loops: str, texts: Texts) -> None:
    for chunk in (1 << 25, 64):
        index = SuffixArray.build(texts(3, 20), chunk)
        for context in texts(4, 10):
            matched, rows = index.continuations(context, 6)
            assert index.continuation_tree(context, 20, 6) == count_trie(rows, 20, matched)


def test_tokens_beyond_sixteen_bits_stay_what_they_are(loops: str) -> None:
    index = SuffixArray.build([[70_000, 151_935, 131_072 + 70_000], [4464, 20_863, 1]])
    assert index.continuations([70_000, 151_935], 1)[1].tolist() == [[201_072]]
    assert index.find([4464, 151_935]) == (0, [])


def test_an_index_is_read_without_being_in_memory(tmp_path: Path) -> None:
    from outpace.indexes import store

    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 1000, 1_000_000).astype(np.int32)
    store.save(SuffixArray.build([tokens], temporary_folder=tmp_path), tmp_path / "corpus.index")
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.index"]
    tracemalloc.start()
    index = store.load(SuffixArray, tmp_path / "corpus.index", mapped=True)
    matched, rows = index.continuations(tokens[500:503].tolist(), 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert matched == 3 and tokens[503:508].tolist() in rows.tolist()
    assert index.nbytes == 8 * 1_000_001 + 8 and peak < 500_000
