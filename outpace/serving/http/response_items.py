"""The output items of a response of /v1/responses, which are reasoning, messages and function calls, and the
events of a stream in which they arise."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outpace.serving.http.output import CallDelta, Delta, ReasoningDelta, TextDelta

IN_PROGRESS, COMPLETED = "in_progress", "completed"
Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PlacedLogprob:
    """The log probabilities at a token, and the token's place in the generated text, in characters."""

    entry: dict[str, Any]
    start: int
    size: int  # 0: it has no text, or ends within a character


class ResponseItems:
    """The items so far. Every method returns the events that it causes, without their sequence numbers.

    A message has the log probabilities of the tokens that begin in its text, and of those without text in it
    or at its end. Those of tool calls, and of the blanks around them, have no place in a response."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._is_open = False  # whether the last item is not complete
        self._logprobs = deque[PlacedLogprob]()  # of tokens that no item had yet
        self._end = 0  # of the last message's text in the generated text

    def push(self, deltas: Sequence[Delta], logprobs: Sequence[PlacedLogprob] = ()) -> list[Event]:
        """Add what a piece of text brought, and the log probabilities of its tokens."""
        self._logprobs += logprobs
        events: list[Event] = []
        for delta in deltas:
            if isinstance(delta, TextDelta):
                events += self._add_text(delta)
            elif isinstance(delta, ReasoningDelta):
                events += self._add_thoughts(delta)
            elif isinstance(delta, CallDelta):
                events += [*self.close(), *self._open(_call(delta))]
            else:
                self._last["arguments"] += delta.text
                events.append(self._event("function_call_arguments.delta", delta=delta.text))
        return events

    def close(self, status: str = COMPLETED) -> list[Event]:
        """Complete the last item, with this status."""
        if not self._is_open:
            return []
        self._is_open, item = False, self._last
        item["status"] = status
        if item["type"] == "message":
            [part] = item["content"]
            part["logprobs"] += self._logprobs_of_text()
            done = [
                self._text_event("output_text.done", text=part["text"], logprobs=part["logprobs"]),
                self._text_event("content_part.done", part=dict(part)),
            ]
        elif item["type"] == "reasoning":
            [part] = item["content"]
            done = [
                self._text_event("reasoning_text.done", text=part["text"]),
                self._text_event("content_part.done", part=dict(part)),
            ]
        else:
            done = [
                self._event("function_call_arguments.done", name=item["name"], arguments=item["arguments"])
            ]
        return [*done, self._item_event("output_item.done")]

    @property
    def _last(self) -> dict[str, Any]:
        return self.items[-1]

    def _logprobs_of_text(self) -> list[dict[str, Any]]:
        """Those, of the tokens that no item had yet, that belong to the message's text up to its end."""
        found: list[dict[str, Any]] = []
        while self._logprobs and self._logprobs[0].start + (self._logprobs[0].size > 0) <= self._end:
            found.append(self._logprobs.popleft().entry)
        return found

    def _add_text(self, delta: TextDelta) -> list[Event]:
        events: list[Event] = []
        if not self._is_open or self._last["type"] != "message":
            events += [*self.close(), *self._open(_message())]
            self._last["content"].append(_text_part())
            events.append(self._text_event("content_part.added", part=_text_part()))
        while self._logprobs and self._logprobs[0].start < delta.start:
            self._logprobs.popleft()
        self._end = delta.start + len(delta.text)
        [part] = self._last["content"]
        part["text"] += delta.text
        found = self._logprobs_of_text()
        part["logprobs"] += found
        events.append(self._text_event("output_text.delta", delta=delta.text, logprobs=found))
        return events

    def _add_thoughts(self, delta: ReasoningDelta) -> list[Event]:
        events: list[Event] = []
        if not self._is_open or self._last["type"] != "reasoning":
            events += [*self.close(), *self._open(_reasoning())]
            self._last["content"].append(_reasoning_part())
            events.append(self._text_event("content_part.added", part=_reasoning_part()))
        self._last["content"][0]["text"] += delta.text
        events.append(self._text_event("reasoning_text.delta", delta=delta.text))
        return events

    def _open(self, item: dict[str, Any]) -> list[Event]:
        self.items.append(item)
        self._is_open = True
        added = self._item_event("output_item.added")
        return [added]

    def _item_event(self, kind: str) -> Event:
        item = {key: list(value) if isinstance(value, list) else value for key, value in self._last.items()}
        return {"type": f"response.{kind}", "output_index": len(self.items) - 1, "item": item}

    def _event(self, kind: str, **values: Any) -> Event:
        place = {"item_id": self._last["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{kind}"} | place | values

    def _text_event(self, kind: str, **values: Any) -> Event:
        return self._event(kind, content_index=0, **values)


def _message() -> dict[str, Any]:
    named = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant"}
    return named | {"status": IN_PROGRESS, "content": []}


def _text_part() -> dict[str, Any]:
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _reasoning() -> dict[str, Any]:
    named = {"id": f"rs_{uuid.uuid4().hex}", "type": "reasoning", "summary": []}
    return named | {"status": IN_PROGRESS, "content": []}


def _reasoning_part() -> dict[str, Any]:
    return {"type": "reasoning_text", "text": ""}


def _call(delta: CallDelta) -> dict[str, Any]:
    named = {"id": f"fc_{uuid.uuid4().hex}", "type": "function_call", "call_id": delta.id}
    return named | {"status": IN_PROGRESS, "name": delta.name, "arguments": ""}
