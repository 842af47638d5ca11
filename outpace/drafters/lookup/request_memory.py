"""A drafter's state for each request, and the texts of requests that have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Step

State = TypeVar("State")


class RequestMemory(Generic[State]):
    """One state per request, created by `begin` at the request's first draft and dropped when it is released.

    `learn` receives the token ids of each request when it is released, finished or interrupted: the generated
    tokens, or with `prompts` the prompt and the generated tokens.
    """

    def __init__(
        self,
        begin: Callable[[], State],
        learn: Callable[[list[int]], object] | None = None,
        *,
        prompts: bool = False,
    ) -> None:
        self._begin, self._learn, self._prompts = begin, learn, prompts
        self._states: dict[int, State] = {}  # slot -> state
        self._num_read: dict[int, int] = {}  # slot -> number of tokens that `follow` has returned
        # slot -> tokens committed before the last step, tokens committed by it
        self._texts: dict[int, tuple[Tensor, list[int]]] = {}

    def follow(self, ctx: Context) -> Iterator[tuple[State, Tensor]]:
        """Per row its state and the tokens committed since the last call; the first call returns the prompt
        too."""
        for slot, tokens in zip(ctx.slots, ctx.tokens, strict=True):
            if slot not in self._states:
                self._states[slot], self._num_read[slot] = self._begin(), 0
            new = tokens[self._num_read[slot] :]
            self._num_read[slot] = len(tokens)
            yield self._states[slot], new

    def observe(self, step: Step) -> None:
        """Store each row's text, which `release` passes to `learn`."""
        if self._learn is None:
            return
        ctx = step.ctx
        for slot, tokens, generated, prompt in zip(
            ctx.slots, ctx.tokens, step.generated, ctx.prompt_lengths, strict=True
        ):
            if len(tokens) >= prompt:  # shorter while the prompt is being read
                self._texts[slot] = tokens[0 if self._prompts else prompt :], generated

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._states.pop(slot, None)
            self._num_read.pop(slot, None)
            text = self._texts.pop(slot, None)
            if text is not None and self._learn is not None:
                tokens, generated = text
                self._learn([*tokens.tolist(), *generated])
