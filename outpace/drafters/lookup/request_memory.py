"""State that a drafter keeps for each request, and the texts of requests that have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Step

State = TypeVar("State")


class RequestMemory(Generic[State]):
    """One state per request, made by `begin` when a request is first met and dropped when it is released.

    `learn` receives the tokens of each request when it is released, finished or interrupted: what it
    generated, or with `prompts` its prompt and what it generated.
    """

    def __init__(
        self,
        begin: Callable[[], State],
        learn: Callable[[list[int]], object] | None = None,
        *,
        prompts: bool = False,
    ) -> None:
        self._begin, self._learn, self._prompts = begin, learn, prompts
        self._states: dict[int, State] = {}  # by slot
        self._num_read: dict[int, int] = {}  # slot -> tokens that `follow` has returned
        self._texts: dict[
            int, tuple[Tensor, list[int]]
        ] = {}  # slot -> tokens before the last step, and from it

    def follow(self, ctx: Context) -> Iterator[tuple[State, Tensor]]:
        """Each row's state, and its tokens committed since the last call; on the first call the prompt
        too."""
        for slot, tokens in zip(ctx.slots, ctx.tokens, strict=True):
            if slot not in self._states:
                self._states[slot], self._num_read[slot] = self._begin(), 0
            new = tokens[self._num_read[slot] :]
            self._num_read[slot] = len(tokens)
            yield self._states[slot], new

    def observe(self, step: Step) -> None:
        """Keep each row's text, for `learn`."""
        if self._learn is None:
            return
        ctx = step.ctx
        for slot, tokens, generated, prompt in zip(
            ctx.slots, ctx.tokens, step.generated, ctx.prompt_lengths, strict=True
        ):
            if len(tokens) >= prompt:  # shorter while the prompt is read
                self._texts[slot] = tokens[0 if self._prompts else prompt :], generated

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._states.pop(slot, None)
            self._num_read.pop(slot, None)
            text = self._texts.pop(slot, None)
            if text is not None and self._learn is not None:
                tokens, generated = text
                self._learn([*tokens.tolist(), *generated])
