"""What is kept of each request of a batch, and of what was said until the next batch begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar
from weakref import ref

from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Cache, Step

State = TypeVar("State")


class RequestMemory(Generic[State]):
    """What a part keeps of each request of a batch.

    A request begins when it is first met and ends when it is released, or when the next batch begins without that:
    the same slot then holds another one. What was said is told to `learn` where the next batch begins, each text once:
    before, a row's draft would depend on the rows decoded beside it.
    """

    def __init__(
        self,
        begin: Callable[[], State],
        learn: Callable[[list[int]], object] | None = None,
        *,
        prompts: bool = False,  # a text begins with its prompt
    ) -> None:
        self._begin, self._learn, self._prompts = begin, learn, prompts
        self._batch: ref[Cache] | None = None  # the target's cache belongs to one batch
        self._states: dict[int, State] = {}
        self._read: dict[int, int] = {}
        self._texts: dict[
            int, tuple[Tensor, list[int]]
        ] = {}  # slot -> its tokens before a step, and those after it
        self._ended: list[tuple[Tensor, list[int]]] = []

    def follow(self, ctx: Context) -> Iterator[tuple[State, Tensor]]:
        """Each row's state, and the committed tokens since it was last asked for, the prompt included."""
        if self._batch is None or self._batch() is not ctx.cache:
            self._batch = ref(ctx.cache)
            self.release(list(self._states))
            for tokens, generated in self._ended:
                if self._learn:
                    self._learn([*tokens.tolist(), *generated])
            self._ended.clear()
        for slot, tokens in zip(ctx.slots, ctx.tokens, strict=True):
            if slot not in self._states:
                self._states[slot], self._read[slot] = self._begin(), 0
            new = tokens[self._read[slot] :]
            self._read[slot] = len(tokens)
            yield self._states[slot], new

    def observe(self, step: Step) -> None:
        """Remember where every row stands: needed where something is learnt."""
        if self._learn is None:
            return
        ctx = step.ctx
        for slot, tokens, generated, prompt in zip(
            ctx.slots, ctx.tokens, step.generated, ctx.prompt_lengths, strict=True
        ):
            if (
                slot in self._states and len(tokens) >= prompt
            ):  # the next batch's prompts are read before it is met
                self._texts[slot] = tokens[0 if self._prompts else prompt :], generated

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._states.pop(slot, None)
            if (text := self._texts.pop(slot, None)) is not None:
                self._ended.append(text)
