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

    `learn` receives the token ids of each request that finishes: the generated tokens, or with `prompts` the
    prompt and the generated tokens. What a cancelled request generated is not learnt: a request that was
    preempted is released as well, and goes on later with its whole text.
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
        """Pass the texts of the requests that finish with this step to `learn`."""
        if self._learn is None:
            return
        for row in step.finished:
            first = 0 if self._prompts else step.ctx.prompt_lengths[row]
            self._learn([*step.ctx.tokens[row][first:].tolist(), *step.generated[row]])

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._states.pop(slot, None)
            self._num_read.pop(slot, None)
