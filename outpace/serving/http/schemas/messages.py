"""Chat messages, and their form in chat templates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel


class TextPart(BaseModel):
    """A part of a message's content."""

    type: Literal["text", "input_text", "output_text"]
    text: str


Content = str | list[TextPart]


class CalledFunction(BaseModel):
    """The name of a function and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call that the assistant made earlier in the conversation."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(BaseModel):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None  # reasoning of the assistant
    reasoning_content: str | None = None  # the older name

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates take it: with one text, and arguments as values."""
        # templates know no developer messages, which replace system messages in OpenAI's API
        role = "system" if self.role == "developer" else self.role
        found: dict[str, Any] = {"role": role, "content": text_of(self.content)}
        if self.name is not None:
            found["name"] = self.name
        if self.tool_call_id is not None:
            found["tool_call_id"] = self.tool_call_id
        if (reasoning := self.reasoning or self.reasoning_content) is not None:
            found |= reasoning_fields(reasoning)
        if self.tool_calls:
            found["tool_calls"] = [
                called(each.id, each.function.name, each.function.arguments) for each in self.tool_calls
            ]
        return found


def text_of(content: Content | None) -> str:
    """The text of a message's content, its parts joined."""
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "".join(part.text for part in content)
    return content or ""


def reasoning_fields(text: str) -> dict[str, Any]:
    """The reasoning of a message under both names that clients and chat templates have for it: that of vLLM's
    server, and the one it had before, which DeepSeek's API has."""
    return {"reasoning": text, "reasoning_content": text}


def called(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A tool call as chat templates take it; arguments that are not JSON stay text."""
    try:
        values: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        values = arguments
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": values}}
