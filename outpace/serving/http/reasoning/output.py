"""Divides generated text into reasoning and the answer."""

from __future__ import annotations

from collections.abc import Callable

from outpace.api.stop_strings import prefix_at_end
from outpace.serving.http.output import Delta, OutputParser, ReasoningDelta
from outpace.serving.http.reasoning.formats import Reasoning


class ReasoningOutput:
    """Implementation of OutputParser for text that begins with reasoning, or may. Blanks around it, and
    before the answer after it, are dropped."""

    def __init__(
        self,
        tags: Reasoning,
        answer: Callable[[int], OutputParser],  # returns the parser of the answer, from its place in the text
        *,
        is_open: bool,  # whether the start tag is before the text
        is_included: bool = True,  # whether the reasoning is passed on
    ) -> None:
        self._tags, self._make_answer, self._is_included = tags, answer, is_included
        self._is_thinking = is_open
        self._held, self._start = "", 0  # what was not passed on, and its place
        self._is_decided = False  # whether the start tag came, or cannot come
        self._is_begun = False  # whether reasoning was passed on
        self._answer: OutputParser | None = None

    @property
    def num_calls(self) -> int:
        return 0 if self._answer is None else self._answer.num_calls

    def push(self, text: str) -> list[Delta]:
        if self._answer is not None:
            return self._answer.push(text)
        self._held += text
        found: list[Delta] = []
        if not self._is_decided:
            begun = self._held.lstrip()
            if self._tags.start.startswith(begun) and begun != self._tags.start:
                return []
            self._is_decided = True
            if begun.startswith(self._tags.start):  # which the model may repeat
                self._drop(self._held.index(self._tags.start) + len(self._tags.start))
                self._is_thinking = True
            elif not self._is_thinking:
                return self._begin_answer()
        if self._is_thinking:
            before, tag, _ = self._held.partition(self._tags.end)
            if not tag:
                before = before[: len(before) - prefix_at_end((self._tags.end,), before)]
            found += self._pass_on(before.rstrip())
            if not tag:
                return found
            self._drop(self._held.index(tag) + len(tag))
            self._is_thinking = False
        self._drop(len(self._held) - len(self._held.lstrip()))
        return found + (self._begin_answer() if self._held else [])

    def finish(self) -> list[Delta]:
        """The rest of reasoning that does not end, or of the answer."""
        if self._answer is not None:
            return self._answer.finish()
        if self._is_thinking:
            return self._pass_on(self._held.rstrip())
        found = self._begin_answer()
        return found + (self._answer.finish() if self._answer is not None else [])

    def _begin_answer(self) -> list[Delta]:
        self._answer, text = self._make_answer(self._start), self._held
        self._drop(len(text))
        return self._answer.push(text)

    def _pass_on(self, reasoning: str) -> list[Delta]:
        """The beginning of what is held, as reasoning."""
        if not reasoning:
            return []
        self._drop(len(reasoning))
        text = reasoning if self._is_begun else reasoning.lstrip()
        self._is_begun = True
        return [ReasoningDelta(text)] if self._is_included else []

    def _drop(self, length: int) -> None:
        self._held = self._held[length:]
        self._start += length
