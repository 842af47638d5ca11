"""The same draft every step."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.context import Context
from outpace.core.contracts import Plan, Step, Want
from outpace.core.tree import Shape


class Fixed:
    """core.contracts.Controller: a chain of `depth` tokens, or a tree of a given shape."""

    want = Want()

    def __init__(self, draft: int | Shape) -> None:
        self._shape = draft if isinstance(draft, Shape) else None
        self._depth = draft.depth if isinstance(draft, Shape) else draft
        if self._depth < 0:
            raise ValueError(f"depth is {self._depth}; use 0 for no speculation or a positive number")

    def plan(self, ctx: Context) -> Plan:
        return Plan((self._depth,) * len(ctx.slots), self._shape)

    def observe(self, step: Step) -> None:
        """Nothing to learn."""

    def release(self, slots: Sequence[int]) -> None:
        """Nothing kept."""
