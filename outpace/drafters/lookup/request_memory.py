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

    `cut` shortens a state to its first tokens. With it, `follow` takes back tokens that were only assumed; a
    drafter without it cannot draft ahead.
    """

    def __init__(
        self,
        begin: Callable[[], State],
        learn: Callable[[list[int]], object] | None = None,
        *,
        prompts: bool = False,
        cut: Callable[[State, int], None] | None = None,
    ) -> None:
        self._begin, self._learn, self._prompts, self._cut = begin, learn, prompts, cut
        self._states: dict[int, State] = {}  # slot -> state
        self._num_read: dict[int, int] = {}  # slot -> number of tokens that `follow` has returned
        # slot -> number of these that are committed, where others were assumed
        self._certain: dict[int, int] = {}

    def follow(self, ctx: Context) -> Iterator[tuple[State, Tensor]]:
        """Per row its state and the tokens that are new since the last call; the first call returns the
        prompt too. Tokens that were assumed before are returned again, or those in their place."""
        for row, (slot, tokens) in enumerate(zip(ctx.slots, ctx.tokens, strict=True)):
            if slot not in self._states:
                self._states[slot], self._num_read[slot] = self._begin(), 0
            if self._cut and (certain := self._certain.pop(slot, len(tokens))) < self._num_read[slot]:
                self._cut(self._states[slot], certain)
                self._num_read[slot] = certain
            if ctx.assumed(row):
                self._certain[slot] = ctx.certain[row]
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
            self._certain.pop(slot, None)
