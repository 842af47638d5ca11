"""Which tokens would repeat an n-gram of a text, for `no_repeat_ngram_size`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from outpace.core.common_length import common_length

if TYPE_CHECKING:
    from torch import Tensor


class RepeatedNgrams:
    """An index of the n-grams of one text, extended as the text grows: the tokens to avoid after a path are
    found by one lookup, however long the text. For another text the index is rebuilt."""

    def __init__(self, size: int) -> None:
        self._before = size - 1  # tokens of an n-gram before its last one
        self._text: Tensor | None = None  # the indexed text
        self._last = dict[tuple[int, ...], list[int]]()  # beginning of an n-gram -> its last tokens

    def after(self, text: Tensor, paths: Sequence[Sequence[int]]) -> Iterator[list[int]]:  # (T,) int64
        """For each path of draft tokens after the text, the tokens that would complete an n-gram of text and
        path once more."""
        self._read(text)
        before = self._before
        tail = text[max(0, len(text) - before) :].tolist()
        for path in paths:
            tokens = [*tail, *path]
            beginning = tuple(tokens[max(0, len(tokens) - before) :])
            # n-grams that end in the path are not in the index
            ends = (
                end for end in range(before, len(tokens)) if tuple(tokens[end - before : end]) == beginning
            )
            yield [*self._last.get(beginning, ()), *(tokens[end] for end in ends)]

    def _read(self, text: Tensor) -> None:
        start = 0 if self._text is None else common_length(self._text, text)
        if self._text is not None and start < len(self._text):
            self._last.clear()
            start = 0
        first = max(0, start - self._before)
        tokens = text[first:].tolist()
        for end in range(max(start - first, self._before), len(tokens)):
            known = self._last.setdefault(tuple(tokens[end - self._before : end]), [])
            if tokens[end] not in known:
                known.append(tokens[end])
        self._text = text
