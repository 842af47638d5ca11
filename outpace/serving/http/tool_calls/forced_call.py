"""Reads the call that a model was forced to write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from outpace.serving.http.output import ArgumentsDelta, CallDelta, Delta, TextDelta

# up to the arguments' first character, as the schema of a forced call has it. A call whose name has escapes
# is read as a whole
HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\\x00-\x1f]*)"\s*,\s*"arguments"\s*:\s*(?=\S)')
CLOSING = "} \t\r\n"  # may have the brace that ends the call among them
DECODER = json.JSONDecoder()


class ForcedCall:
    """Implementation of OutputParser for a text that is the JSON of one call. Its arguments are passed on
    while they are generated.

    start: place of the text in the generated text, in characters."""

    def __init__(self, new_id: Callable[[], str], start: int = 0) -> None:
        self.num_calls = 0
        self._new_id, self._start = new_id, start
        self._text, self._given = "", 0  # the text, or that of the arguments; how much of it was passed on
        self._is_named = False

    def push(self, text: str) -> list[Delta]:
        self._text += text
        found: list[Delta] = []
        if not self._is_named:
            head = HEAD.match(self._text)
            if head is None:
                return []
            self._text, self._is_named = self._text[head.end() :], True
            found.append(self._begin(head[1]))
        return found + self._pass_on(len(self._text.rstrip(CLOSING)))

    def finish(self) -> list[Delta]:
        """The end of the arguments; the text itself if it is no call."""
        if self._is_named:
            try:
                _, end = DECODER.raw_decode(self._text)
            except (ValueError, RecursionError):  # it was cut off
                end = len(self._text)
            return self._pass_on(end)
        try:
            call = json.loads(self._text)
            name, arguments = str(call["name"]), json.dumps(call["arguments"], ensure_ascii=False)
        except (ValueError, LookupError, TypeError, RecursionError):
            return [TextDelta(self._text, self._start)] if self._text else []
        return [self._begin(name), ArgumentsDelta(0, arguments)]

    def _begin(self, name: str) -> CallDelta:
        self.num_calls = 1
        return CallDelta(0, self._new_id(), name)

    def _pass_on(self, end: int) -> list[Delta]:
        piece, self._given = self._text[self._given : end], max(end, self._given)
        return [ArgumentsDelta(0, piece)] if piece else []
