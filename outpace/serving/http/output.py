"""What the generated text of a sample is divided into, for answers that are whole and for streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text of the answer that is neither part of a call nor reasoning."""

    text: str
    start: int  # its place in the generated text, in characters


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Reasoning before the answer."""

    text: str


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


Delta = TextDelta | ReasoningDelta | CallDelta | ArgumentsDelta


class OutputParser(Protocol):
    """Divides generated text. The pieces in which it arrives make no difference."""

    @property
    def num_calls(self) -> int:
        """Calls found so far."""
        ...

    def push(self, text: str) -> list[Delta]:
        """What the next piece of text adds."""
        ...

    def finish(self) -> list[Delta]:
        """What the end of the text adds."""
        ...


class TextOutput:
    """Implementation of OutputParser for text without calls.

    start: its place in the generated text, in characters."""

    num_calls = 0

    def __init__(self, start: int = 0) -> None:
        self._length = start

    def push(self, text: str) -> list[Delta]:
        start = self._length
        self._length += len(text)
        return [TextDelta(text, start)] if text else []

    def finish(self) -> list[Delta]:
        return []
