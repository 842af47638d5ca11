"""Incremental detokenization: tokens to text that never splits a character and stops before stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # decoded from bytes that are not (yet) a character
CONTEXT = (
    6  # previous tokens decoded together with new ones, because spaces and byte sequences depend on them
)


class Detokenizer:
    """The text of one row, in pieces that later tokens do not change.

    The pieces together are the text after the prompt, with a leading space of the first word, without special
    tokens.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt: Sequence[int],
        stop: Sequence[str] = (),
        min_tokens: int = 0,  # a stop string completed within this many tokens does not end the text
    ) -> None:
        self._tokenizer, self._stop, self._min_tokens = tokenizer, tuple(stop), min_tokens
        self._window = list(prompt[-CONTEXT:])
        # characters of the window's text that are in `text` already, or the prompt's
        self._sent = len(self._complete(self._decode()))
        self._text = ""
        self._given = 0
        self.num_tokens = 0
        self.stopped: str | None = None  # the stop string that ended the text

    @property
    def text(self) -> str:
        """All complete characters so far."""
        return self._text

    def push(self, tokens: Sequence[int]) -> int:
        """Add tokens; returns how many were used: fewer than given if a stop string ended the text before."""
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
        """The new text since the last call, without an end that may become a stop string."""
        end = len(self._text) - (0 if self.stopped is not None else self._stop_prefix())
        piece, self._given = self._text[self._given : end], max(end, self._given)
        return piece

    def finish(self) -> str:
        """The rest of the text, with bytes that never became a character as replacement characters."""
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
        whole = self._complete(text)
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

    def _complete(self, text: str) -> str:
        return text.rstrip(INCOMPLETE)

    def _cut(self, before: int) -> bool:
        """End the text at the first stop string that ends after position `before`; whether there is one."""
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
        """The number of characters at the end of the text that are the beginning of a stop string."""
        most = min(max(map(len, self._stop), default=0) - 1, len(self._text))
        for length in range(most, 0, -1):
            if any(word.startswith(self._text[-length:]) for word in self._stop):
                return length
        return 0
