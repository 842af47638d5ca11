"""Tokens to text while they come: no half characters, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HELD = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer writes for bytes that are not a character (yet)
CONTEXT = 6  # tokens decoded again before new ones: what spaces and byte sequences depend on


class Writer:
    """The text of one row, in pieces that are never taken back.

    The pieces together are the text that follows the prompt: a leading space of the first word is kept, special tokens
    are not.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt: Sequence[int],
        stop: Sequence[str] = (),
        min_tokens: int = 0,  # stop strings completed by one of the first so many tokens are text like any other
    ) -> None:
        self._tokenizer, self._stop, self._min_tokens = tokenizer, tuple(stop), min_tokens
        self._window = list(prompt[-CONTEXT:])
        self._sent = len(
            self._whole(self._decode())
        )  # characters of the window's text that are out, or the prompt's
        self._text = ""
        self._given = 0
        self.num_tokens = 0
        self.stopped: str | None = None  # the stop string that ended the text

    @property
    def text(self) -> str:
        """All that is certain so far."""
        return self._text

    def push(self, tokens: Sequence[int]) -> int:
        """Take new tokens; how many were taken, fewer where a stop string was completed before the last."""
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
        """What has become certain since the last call: what may yet turn out to be a stop string is held back."""
        end = len(self._text) - (0 if self.stopped is not None else self._begun())
        piece, self._given = self._text[self._given : end], max(end, self._given)
        return piece

    def finish(self) -> str:
        """The last piece: bytes that never became a character are written as they are."""
        if self.stopped is None:
            before = len(self._text)
            text = self._decode()
            self._text += text[self._sent :]
            self._sent = len(text)
            self._cut(before)
        piece, self._given = self._text[self._given :], len(self._text)
        return piece

    def _extend(self, tokens: Sequence[int]) -> None:
        self.num_tokens += len(tokens)
        self._window += tokens
        text = self._decode()
        whole = self._whole(text)
        if len(whole) > self._sent:
            self._text += whole[self._sent :]
            self._sent = len(whole)
        if len(whole) == len(text) and len(self._window) > 4 * CONTEXT:
            del self._window[:-CONTEXT]
            self._sent = len(self._decode())

    def _decode(self) -> str:
        return self._tokenizer.decode(
            self._window, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def _whole(self, text: str) -> str:
        return text.rstrip(HELD)

    def _cut(self, before: int) -> bool:
        """End the text at the first stop string that was completed by what came after `before`."""
        if self.num_tokens <= self._min_tokens:
            return False
        starts = [(self._text.find(word, max(0, before - len(word) + 1)), word) for word in self._stop]
        found = [(at, word) for at, word in starts if at >= 0]
        if not found:
            return False
        at, self.stopped = min(found)
        self._text = self._text[:at]
        return True

    def _begun(self) -> int:
        """Characters at the end that a stop string may begin with."""
        most = min(max(map(len, self._stop), default=0) - 1, len(self._text))
        for length in range(most, 0, -1):
            if any(word.startswith(self._text[-length:]) for word in self._stop):
                return length
        return 0
