"""Finds the calls that a model writes by itself among its text."""

from __future__ import annotations

from outpace.api.stop_strings import prefix_at_end
from outpace.serving.http.output import ArgumentsDelta, CallDelta, Delta, TextDelta
from outpace.serving.http.tool_calls.call_format import Call, CallFormat, Schemas

SHORT = 256  # characters of a call that are read again with each piece


class FoundCalls:
    """Implementation of OutputParser for text with calls of a format.

    A call is passed on when it is complete: text that only looks like one until then stays text, with its
    tags. Blanks before a call, and between calls, are dropped.

    start: place of the text in the generated text, in characters."""

    def __init__(self, call_format: CallFormat, schemas: Schemas, start: int = 0) -> None:
        self.num_calls = 0
        self._format, self._schemas = call_format, schemas
        self._held, self._start = "", start  # what was not passed on, and its place
        self._is_open = True  # whether there were only blanks since the start or the last call

    def push(self, text: str) -> list[Delta]:
        self._held += text
        if len(self._held) > SHORT and not any(end in text for end in self._format.closing):
            if self._candidate() is not None:
                return []  # a long call, which is read as a whole each time: not before it may be complete
        return self._read(is_end=False)

    def finish(self) -> list[Delta]:
        """The rest of the text: of a call that is not complete too."""
        found = self._read(is_end=True)
        if self.num_calls and self._is_open and not self._held.strip():
            return found  # blanks behind the last call
        return found + self._pass_on(len(self._held))

    def _read(self, *, is_end: bool) -> list[Delta]:
        deltas: list[Delta] = []
        while (place := self._candidate()) is not None:
            reading = self._format.read(self._held[place:], self._schemas, is_end=is_end)
            if reading is None:
                break
            if reading.calls:
                before = len(self._held[:place].rstrip())
                deltas += self._pass_on(before)
                self._drop(place - before + reading.length)
                for call in reading.calls:
                    deltas += self._begin(call)
                self._is_open = True
            else:
                deltas += self._pass_on(place + reading.length)
        end = len(self._held) - prefix_at_end(self._format.tags, self._held) if place is None else place
        return deltas + self._pass_on(len(self._held[:end].rstrip()))

    def _candidate(self) -> int | None:
        """Where in the text that is held the first call may begin."""
        blanks = len(self._held) - len(self._held.lstrip())
        if self._is_open and self._held[blanks : blanks + 1] in tuple(self._format.opening):
            return blanks
        places = [place for tag in self._format.tags if (place := self._held.find(tag)) >= 0]
        return min(places, default=None)

    def _pass_on(self, length: int) -> list[Delta]:
        """So many characters as text."""
        if not length:
            return []
        delta = TextDelta(self._held[:length], self._start)
        self._drop(length)
        self._is_open = False
        return [delta]

    def _drop(self, length: int) -> None:
        self._held = self._held[length:]
        self._start += length

    def _begin(self, call: Call) -> list[Delta]:
        index = self.num_calls
        self.num_calls += 1
        return [
            CallDelta(index, self._format.new_id(), call.name),
            ArgumentsDelta(index, call.arguments),
        ]
