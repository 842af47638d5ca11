"""Incremental detokenization: token ids to text, without incomplete UTF-8 characters and stop strings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from outpace.api.stop_strings import StopStrings

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # decoded from an incomplete or invalid UTF-8 sequence
CONTEXT = 6  # earlier tokens that are decoded with new ones, because spaces depend on them
LONGEST = 4 * CONTEXT  # most tokens that are decoded together, unless none of them can be left out
CHARACTER = 4  # most bytes of a character in UTF-8, and so most tokens that spell one


class Detokenizer:
    """Converts the tokens of one row to text, in pieces that later tokens do not change.

    The concatenated pieces are the text after the prompt, including a leading space, without special tokens
    but those that are shown.
    They are the same however the tokens are divided into steps.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt: Sequence[int],
        stop: Sequence[str] = (),
        min_tokens: int = 0,  # stop strings completed within the first `min_tokens` new tokens are ignored
        special_tokens: Mapping[int, str] = MappingProxyType({}),  # those that stop strings may name
        shown: Mapping[int, str] = MappingProxyType({}),  # special tokens that the text has all the same
        *,
        ends: Collection[int] = (),  # tokens that have no text, as they end it; also if they are in `shown`
        include_stop: bool = False,  # the text has the stop string that ended it
        skip_special_tokens: bool = True,  # but those of `shown`
    ) -> None:
        self._shown = shown if skip_special_tokens else {}  # which the tokenizer leaves out
        self._tokenizer, self._min_tokens = tokenizer, min_tokens
        self._ends, self._include_stop = frozenset(ends), include_stop
        self._skip_special_tokens = skip_special_tokens
        hidden = special_tokens.items() if skip_special_tokens else ()
        written_out = {token: text for token, text in hidden if token not in shown}
        self._stop = StopStrings(stop, written_out) if stop else None
        # the last tokens, decoded together, and the text of the first `_num_read` of them, after which a
        # character is complete
        self._window, self._read, self._num_read = self._end_of(prompt)
        self._longest = LONGEST
        # number of leading characters of the window's text that belong to the prompt or are in `_text`
        self._sent = max(len(self._read), len(self._decode(self._window).rstrip(INCOMPLETE)))
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
        if self._stop is None:
            self._extend(tokens)
            return len(tokens)
        for count, token in enumerate(tokens, 1):
            before = len(self._text)
            self._extend([token])
            if self._cut(before, token):
                return count
        return len(tokens)

    def piece(self) -> str:
        """The new text since the last call, without a suffix that may be the beginning of a stop string."""
        end = len(self._text)
        if self._stop is not None and self.stopped is None:
            end -= self._stop.num_held(self._text)
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
        if tokens and tokens[-1] in self._ends:
            tokens = tokens[:-1]
        if len(tokens) > 1 and len(self._window) + len(tokens) <= self._longest:
            text = self._decode([*self._window, *tokens])
            if INCOMPLETE not in text:  # the usual case: one decoding for all tokens
                self._window += tokens
                self._add(text)
                return
        for token in tokens:
            self._window.append(token)
            text = self._decode(self._window)
            if not text.startswith(self._read):
                # a byte that completes no character: byte fallback decodes none of the bytes next to it
                # either, of which the earlier ones were characters so far
                del self._window[: self._num_read]
                self._sent -= len(self._read)
                self._read, self._num_read = "", 0
                text = self._decode(self._window)
            self._add(text)

    def _add(self, text: str) -> None:
        """Take over what is new in the window's text, up to the last complete character."""
        whole = text.rstrip(INCOMPLETE)
        if len(whole) > self._sent:
            self._text += whole[self._sent :]
            self._sent = len(whole)
        if len(whole) == len(text):
            self._read, self._num_read = text, len(self._window)
            if len(self._window) > self._longest:
                self._shorten()

    def _shorten(self) -> None:
        """Drop the window's first tokens, unless the text of the others depends on them: where the others
        begin within a character, or have no text yet."""
        for start in range(len(self._window) - CONTEXT, len(self._window) - CONTEXT - CHARACTER, -1):
            text = self._decode(self._window[start:])
            if text and self._read.endswith(text):
                del self._window[:start]
                self._read, self._num_read, self._sent = text, len(self._window), len(text)
                self._longest = LONGEST
                return
        self._longest = 2 * len(self._window)

    def _end_of(self, prompt: Sequence[int]) -> tuple[list[int], str, int]:
        """The last tokens of the prompt, from the beginning of a character; and the text and number of those
        before a character that the prompt does not complete."""
        for num_bytes in range(CHARACTER):
            end = max(0, len(prompt) - num_bytes)
            for size in range(CONTEXT, CONTEXT + CHARACTER):
                start = max(0, end - size)
                text = self._decode(list(prompt[start:end]))
                if not text.startswith(INCOMPLETE) and not text.endswith(INCOMPLETE):
                    return list(prompt[start:]), text, end - start
        window = list(prompt[-CONTEXT:])  # bytes that are no characters
        num_read = max(0, len(window) - CHARACTER + 1)
        return window, self._decode(window[:num_read]), num_read

    def _decode(self, tokens: Sequence[int]) -> str:
        texts, start = "", 0
        for place, token in enumerate(tokens if self._shown else ()):
            if token in self._shown:
                texts += self._decoded(tokens[start:place]) + self._shown[token]
                start = place + 1
        return texts + self._decoded(tokens[start:])

    def _decoded(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(
            tokens, skip_special_tokens=self._skip_special_tokens, clean_up_tokenization_spaces=False
        )

    def _cut(self, before: int, token: int | None = None) -> bool:
        """Cut the text before the first stop string that ends in what `token` added after character `before`.

        Returns whether a stop string occurred; it is then in `stopped`.
        """
        found = None if self._stop is None else self._stop.find(self._text, before, token)
        if found is None or self.num_tokens <= self._min_tokens:
            return False
        begin, end, self.stopped = found
        self._text = self._text[: end if self._include_stop else begin]
        return True
