"""Incremental detokenization: token ids to text, without incomplete UTF-8 characters and stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # decoded from an incomplete or invalid UTF-8 sequence
CONTEXT = (
    6  # number of earlier tokens decoded with the new ones, because spaces and UTF-8 sequences depend on them
)
UNFINISHED = 3  # most bytes, and so most characters of INCOMPLETE, of a UTF-8 sequence that is not complete


class Detokenizer:
    """Converts the tokens of one row to text, in pieces that later tokens do not change.

    The concatenated pieces are the text after the prompt, including a leading space, without special tokens.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt: Sequence[int],
        stop: Sequence[str] = (),
        min_tokens: int = 0,  # stop strings completed within the first `min_tokens` new tokens are ignored
    ) -> None:
        self._tokenizer, self._stop, self._min_tokens = tokenizer, tuple(stop), min_tokens
        self._window = self._last(prompt)
        # number of leading characters of the decoded window that belong to the prompt or are in `_text`
        self._sent = len(self._decode(self._window).rstrip(INCOMPLETE))
        self._text = ""
        self._given = 0
        self.num_tokens = 0
        self.stopped: str | None = None  # the stop string that ended the text; None if none occurred

    @property
    def text(self) -> str:
        """The text generated so far, up to the last complete character."""
        return self._text

    def push(self, tokens: Sequence[int]) -> int:
        """Append tokens; returns the number used: fewer than given if a stop string ended the text."""
        if self.stopped is not None:
            return 0
        if not self._stop:
            self._extend(tokens)
            return len(tokens)
        for count, token in enumerate(tokens, 1):
            before = len(self._text)
            self._extend([token])
            if self._cut(before):
                return count
        return len(tokens)

    def piece(self) -> str:
        """The new text since the last call, without a suffix that may be the beginning of a stop string."""
        end = len(self._text) - (0 if self.stopped is not None else self._stop_prefix())
        piece, self._given = self._text[self._given : end], max(end, self._given)
        return piece

    def finish(self) -> str:
        """The remaining text; incomplete UTF-8 sequences are decoded to replacement characters."""
        if self.stopped is None:
            before = len(self._text)
            text = self._decode(self._window)
            self._text += text[self._sent :]
            self._sent = len(text)
            self._cut(before)
        piece, self._given = self._text[self._given :], len(self._text)
        return piece

    def _extend(self, tokens: Sequence[int]) -> None:
        self.num_tokens += len(tokens)
        self._window += tokens
        text = self._decode(self._window)
        held = self._num_held(text)
        whole = text[: len(text) - held]
        if len(whole) > self._sent:
            self._text += whole[self._sent :]
            self._sent = len(whole)
        if held <= UNFINISHED and len(self._window) > 4 * CONTEXT:
            self._window = self._last(self._window)
            self._sent = max(0, len(self._decode(self._window)) - held)

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _last(self, tokens: Sequence[int]) -> list[int]:
        """The last CONTEXT tokens, or a few more, so that they begin with a whole character: some tokenizers
        decode bytes together, and all of them are INCOMPLETE if the first are a part of a character."""
        for size in range(CONTEXT, CONTEXT + UNFINISHED + 1):
            last = list(tokens[-size:])
            if not self._decode(last).startswith(INCOMPLETE):
                return last
        return list(tokens[-CONTEXT:])

    def _num_held(self, text: str) -> int:
        """Number of characters at the end of the window's text that later tokens may change."""
        held = len(text) - len(text.rstrip(INCOMPLETE))
        if held <= UNFINISHED or len(self._window) <= 4 * CONTEXT:
            return held
        # where bytes are decoded together, an incomplete sequence at their end makes all of them INCOMPLETE;
        # if the text is not whole without it either, the other bytes will never be characters
        shorter = (self._decode(self._window[:-count]) for count in range(1, UNFINISHED + 1))
        return UNFINISHED if all(text.endswith(INCOMPLETE) for text in shorter) else held

    def _cut(self, before: int) -> bool:
        """Cut the text before the first stop string that ends after character `before`.

        Returns whether a stop string occurred; it is then in `stopped`.
        """
        if self.num_tokens <= self._min_tokens:
            return False
        starts = [(self._text.find(word, max(0, before - len(word) + 1)), word) for word in self._stop]
        found = [(at, word) for at, word in starts if at >= 0]
        if not found:
            return False
        at, self.stopped = min(found)
        self._text = self._text[:at]
        return True

    def _stop_prefix(self) -> int:
        """Length in characters of the longest suffix of the text that is a proper prefix of a stop string."""
        max_length = min(max(map(len, self._stop), default=0) - 1, len(self._text))
        for length in range(max_length, 0, -1):
            if any(word.startswith(self._text[-length:]) for word in self._stop):
                return length
        return 0
