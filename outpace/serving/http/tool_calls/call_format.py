"""The interface of a format in which models write tool calls."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Call:
    """A complete call."""

    name: str
    arguments: str  # JSON text of an object


@dataclass(frozen=True, slots=True)
class Reading:
    """What a text begins with: calls, or `length` characters of text if there are none."""

    calls: Sequence[Call]
    length: int  # characters that were read


LLAMA_TAGS = ("<|python_tag|>", "<|python_start|>")  # before calls of Llama 3 and 4, in several formats
Schemas = Mapping[str, Mapping[str, Any]]  # name of a tool -> JSON schema of its parameters


class CallFormat(Protocol):
    """A format of calls. It has no state, and decides from the beginning of a text alone: what follows the
    characters of a Reading, or has not arrived, does not change it."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Texts with one of which a call may begin anywhere."""
        ...

    @property
    def opening(self) -> str:
        """Characters with which a call may begin at the start of the text, or after a call."""
        ...

    @property
    def closing(self) -> str:
        """Characters one of which every call ends with."""
        ...

    @property
    def special(self) -> tuple[str, ...]:
        """Texts of calls that are special tokens in some tokenizers."""
        ...

    def read(self, text: str, schemas: Schemas, *, is_end: bool) -> Reading | None:
        """What a text that begins with a tag, or an opening character, begins with; None if that depends on
        text that has not arrived. `is_end`: no more will arrive."""
        ...

    def new_id(self) -> str:
        """The id of a new call."""
        ...


def long_id() -> str:
    """An id in the form of OpenAI's API."""
    return f"call_{uuid.uuid4().hex}"
