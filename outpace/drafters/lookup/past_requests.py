"""What earlier requests wrote, in suffix arrays beside one of a corpus: where the last tokens of a text
occurred."""

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
PARTS = 8  # into which the room for the past is divided; the oldest is forgotten as a whole


def corpus(path: str | None, vocab: int) -> SuffixArray | None:
    """The suffix array in this file, left on disk; ValueError if it holds tokens that the model does not
    know."""
    return store.open_index(SuffixArray, path, vocab)


class PastRequests:
    """Texts of requests that have ended, with their prompts, and a corpus if there is one.

    A request is indexed when it has ended; the drafts of requests still running then find its text too. The
    newest `most` tokens are kept, at 8 bytes each. Suffix arrays of similar size are merged, so that a token
    is sorted a few times in all.
    """

    def __init__(self, corpus: SuffixArray | None = None, most: int = 1 << 20) -> None:
        if most < 0:
            raise ValueError(
                f"room for {most} tokens of earlier requests: use 0 for none or a positive number"
            )
        self._most = most
        self._indexes = [] if corpus is None else [corpus]
        self._corpora = len(self._indexes)
        self._runs: list[SuffixArray] = []
        self._waiting: list[Ints] = []
        self._requests = RequestMemory[None](lambda: None, self._wait if most else None, prompts=True)
        self.learns_across_rows = most > 0

    def __len__(self) -> int:
        """Tokens of earlier requests that can be found."""
        return sum(run.metadata["tokens"] for run in self._runs)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to search."""
        return not self._indexes

    def observe(self, step: Step) -> None:
        self._requests.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        self._requests.release(slots)
        if self._waiting:
            self._index()

    def rows(self, context: Sequence[int], length: int, max_ngram: int, min_ngram: int) -> tuple[int, Ints]:
        """How many last tokens were found, and (num, length) what followed them wherever they occurred."""
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
        """The `num_nodes` most frequent beginnings of what followed; weights are counts."""
        matched, rows = self.rows(context, length, max_ngram, min_ngram)
        return count_trie(rows, num_nodes, matched) if matched else NO_CANDIDATES

    def _wait(self, text: list[int]) -> None:
        self._waiting.append(np.array(text, np.int32)[-self._most // PARTS :])

    def _index(self) -> None:
        new, self._waiting = self._waiting, []
        size = sum(map(len, new))
        while self._runs and len(self._runs[-1].text) <= size and size < self._most // PARTS:
            run = self._runs.pop()
            new, size = [*_documents(run), *new], size + run.metadata["tokens"]
        self._runs.append(SuffixArray.build(new))
        while len(self) > self._most:
            del self._runs[0]
        self._indexes[self._corpora :] = [_joined(self._runs)] if self._runs else []


def _documents(index: SuffixArray) -> list[Ints]:
    ends = np.flatnonzero(index.text < 0)
    return [part[part >= 0] for part in np.split(index.text, ends)[:-1]]


def _joined(runs: Sequence[SuffixArray]) -> SuffixArray:
    """All of them as chunks of one."""
    metadata = {name: sum(run.metadata[name] for run in runs) for name in ("tokens", "documents")}
    suffixes = np.concatenate([run.suffixes for run in runs])
    text = np.concatenate([run.text for run in runs])
    starts = np.cumsum([0, *(len(run.text) for run in runs[:-1])])
    ends = np.concatenate([start + run.chunk_ends for start, run in zip(starts, runs, strict=True)])
    return SuffixArray(text, suffixes, ends, metadata)
