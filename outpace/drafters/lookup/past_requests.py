"""Suffix arrays of the texts of earlier requests and of a corpus, searched for the last tokens of a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outpace.core.contracts import Step
from outpace.drafters.lookup.request_memory import RequestMemory
from outpace.indexes import store
from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree
from outpace.indexes.suffix_array.array import SuffixArray
from outpace.indexes.suffix_array.count_trie import count_trie

Ints = NDArray[np.int32]
PARTS = 8  # a suffix array of 1/8 of the capacity is merged no further; the oldest is dropped as a whole


def corpus(path: str | None, vocab: int) -> SuffixArray | None:
    """The memory-mapped suffix array in this file, None without a path; ValueError if it contains token ids
    beyond the model's vocabulary."""
    return store.open_index(SuffixArray, path, vocab)


class PastRequests:
    """Suffix arrays of the texts of requests that have ended, prompts included, and of a corpus if one is
    given.

    A request is indexed when it ends and is found from then on, also by requests that are still running. The
    newest `max_tokens` tokens are kept, at 8 bytes each. Suffix arrays of similar size are merged, so that
    each token is sorted a few times in all.
    """

    def __init__(self, corpus: SuffixArray | None = None, max_tokens: int = 1 << 20) -> None:
        if max_tokens < 0:
            raise ValueError(f"max_cached_tokens is {max_tokens}; give 0 for none or a positive number")
        self._max_tokens = max_tokens
        self._indexes = [] if corpus is None else [corpus]
        self._corpora = len(self._indexes)
        self._runs: list[SuffixArray] = []
        self._waiting: list[Ints] = []
        self._requests = RequestMemory[None](lambda: None, self._wait if max_tokens else None, prompts=True)
        self.learns_across_rows = max_tokens > 0

    def __len__(self) -> int:
        """Number of indexed tokens of earlier requests."""
        return sum(run.metadata["tokens"] for run in self._runs)

    @property
    def empty(self) -> bool:
        """Whether neither a corpus nor an earlier request is indexed."""
        return not self._indexes

    def observe(self, step: Step) -> None:
        self._requests.observe(step)
        if self._waiting:
            self._index()

    def release(self, slots: Sequence[int]) -> None:
        self._requests.release(slots)

    def rows(self, context: Sequence[int], length: int, max_ngram: int, min_ngram: int) -> tuple[int, Ints]:
        """Length of the longest suffix of `context` that occurs, and the (num, length) tokens after its
        occurrences."""
        found = [
            index.continuations(context, length, max_ngram=max_ngram, min_ngram=min_ngram)
            for index in self._indexes
        ]
        matched = max((each for each, _ in found), default=0)
        rows = [rows for each, rows in found if each == matched and each]
        if not rows:
            return 0, np.empty((0, length), np.int32)
        return matched, rows[0] if len(rows) == 1 else np.concatenate(rows)

    def branches(
        self, context: Sequence[int], num_nodes: int, length: int, max_ngram: int, min_ngram: int
    ) -> CandidateTree:
        """The `num_nodes` most frequent prefixes of the continuations of `context`, as a tree; weights are
        counts."""
        matched, rows = self.rows(context, length, max_ngram, min_ngram)
        return count_trie(rows, num_nodes, matched) if matched else NO_CANDIDATES

    def _wait(self, text: list[int]) -> None:
        self._waiting.append(np.array(text, np.int32)[-self._max_tokens // PARTS :])

    def _index(self) -> None:
        new, self._waiting = self._waiting, []
        size = sum(map(len, new))
        largest = self._max_tokens // PARTS
        while self._runs and (tokens := self._runs[-1].metadata["tokens"]) <= size < largest:
            new, size = [*_documents(self._runs.pop()), *new], size + tokens
        self._runs.append(SuffixArray.build(new))
        while len(self) > self._max_tokens:
            del self._runs[0]
        self._indexes[self._corpora :] = [_joined(self._runs)] if self._runs else []


def _documents(index: SuffixArray) -> list[Ints]:
    ends = np.flatnonzero(index.text < 0)
    return [part[part >= 0] for part in np.split(index.text, ends)[:-1]]


def _joined(runs: Sequence[SuffixArray]) -> SuffixArray:
    """One suffix array that has the given ones as its chunks."""
    metadata = {name: sum(run.metadata[name] for run in runs) for name in ("tokens", "documents")}
    suffixes = np.concatenate([run.suffixes for run in runs])
    text = np.concatenate([run.text for run in runs])
    starts = np.cumsum([0, *(len(run.text) for run in runs[:-1])])
    ends = np.concatenate([start + run.chunk_ends for start, run in zip(starts, runs, strict=True)])
    return SuffixArray(text, suffixes, ends, metadata)
