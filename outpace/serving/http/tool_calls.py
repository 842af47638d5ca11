"""Finds tool calls in generated text while it is generated.

A model that may call tools writes `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and
Qwen do; other formats stay text. A model that must call one writes the JSON alone.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from typing import Protocol

BEGIN, END = "<tool_call>", "</tool_call>"
# up to the arguments' first character; models write the name before the arguments. A call that begins in
# another way, or whose name has escapes, is read as a whole
HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\\x00-\x1f]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\S)')
CLOSING = "} \t\r\n"  # may have the brace that ends the call among them


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text of the answer that is not part of a call."""

    text: str
    start: int  # its place in the generated text, in characters


@dataclass(frozen=True, slots=True)
class CallDelta:
    """The beginning of a call: its name is known, its arguments follow."""

    index: int  # number of the calls before it
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


Delta = TextDelta | CallDelta | ArgumentsDelta


class OutputParser(Protocol):
    """Divides generated text into text for the client and tool calls."""

    num_calls: int  # calls found so far

    def push(self, text: str) -> list[Delta]:
        """What the next piece of text adds."""
        ...

    def finish(self) -> list[Delta]:
        """What the end of the text adds."""
        ...


class TextOutput:
    """Implementation of OutputParser without tools."""

    num_calls = 0

    def __init__(self) -> None:
        self._length = 0  # of the text so far

    def push(self, text: str) -> list[Delta]:
        start = self._length
        self._length += len(text)
        return [TextDelta(text, start)] if text else []

    def finish(self) -> list[Delta]:
        return []


class ForcedCall:
    """Implementation of OutputParser for a text that is the JSON of one call.

    index: number of the calls before it. start: its place in the generated text, in characters."""

    def __init__(self, index: int = 0, start: int = 0) -> None:
        self.num_calls = 0
        self._index, self._start = index, start
        self._text = ""  # what was not passed on
        self._is_named = False

    def push(self, text: str) -> list[Delta]:
        self._text += text
        found: list[Delta] = []
        if not self._is_named:
            head = HEAD.match(self._text)
            if head is None:
                return []
            self._text, self._is_named, self.num_calls = self._text[head.end() :], True, 1
            found.append(self._begin(head[1]))
        end = len(self._text.rstrip(CLOSING))
        arguments, self._text = self._text[:end], self._text[end:]
        return found + ([ArgumentsDelta(self._index, arguments)] if arguments else [])

    def finish(self) -> list[Delta]:
        """The closing braces of the arguments; the text itself if it is no call."""
        text, self._text = self._text.rstrip(), ""
        if self._is_named:
            rest = text.removesuffix("}").rstrip()
            return [ArgumentsDelta(self._index, rest)] if rest else []
        try:
            call = json.loads(text)
            name, arguments = str(call["name"]), json.dumps(call["arguments"], ensure_ascii=False)
        except (ValueError, LookupError, TypeError, RecursionError):
            return [TextDelta(text, self._start)] if text else []
        self.num_calls = 1  # its keys are in another order, or it has more of them
        return [self._begin(name), ArgumentsDelta(self._index, arguments)]

    def _begin(self, name: str) -> CallDelta:
        return CallDelta(self._index, f"call_{uuid.uuid4().hex}", name)


class TaggedCalls:
    """Implementation of OutputParser for text with calls between tags."""

    def __init__(self) -> None:
        self.num_calls = 0
        self._text = ""  # what was not passed on: it may be the beginning of a tag
        self._length = 0  # of the text before it
        self._call: ForcedCall | None = None  # the call that the text is in

    def push(self, text: str) -> list[Delta]:
        self._text += text
        found: list[Delta] = []
        while True:
            tag = BEGIN if self._call is None else END
            before, was_found, after = self._text.partition(tag)
            if not was_found:
                break
            found += self._pass_on(before.rstrip() if self._call is None else before)
            self._text = after
            self._length += len(before) + len(tag)
            if self._call is None:
                self._call = ForcedCall(self.num_calls, self._length)
            else:
                found += self._end_call()
        passed = self._text[: len(self._text) - _held(self._text, tag)]
        found += self._pass_on(passed)
        self._text = self._text[len(passed) :]
        self._length += len(passed)
        return found

    def finish(self) -> list[Delta]:
        """The rest of the text, or of a call without an end."""
        rest, self._text = self._text, ""
        if self._call is None:
            return self._pass_on("" if self.num_calls and not rest.strip() else rest)
        return [*self._call.push(rest), *self._end_call()]

    def _pass_on(self, text: str) -> list[Delta]:
        """What the next piece of the text, after `_length` characters, adds."""
        if self._call is not None:
            return self._call.push(text)
        if self.num_calls and not text.strip():
            return []  # blanks between calls
        return [TextDelta(text, self._length)] if text else []

    def _end_call(self) -> list[Delta]:
        assert self._call is not None
        found = self._call.finish()
        self.num_calls += self._call.num_calls
        self._call = None
        return found


def _held(text: str, tag: str) -> int:
    """Number of characters at the end of `text` that may begin `tag`, with the blanks before them, which a
    call would drop."""
    start = next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-n:])), 0)
    if tag == END:
        return start
    without = text[: len(text) - start]
    return start + len(without) - len(without.rstrip())
