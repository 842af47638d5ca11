"""A controller that plans the same draft in every step."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.context import Context
from outpace.core.contracts import Plan, Step, Want
from outpace.core.tree import Shape


class Fixed:
    """Implementation of core.contracts.Controller that plans a chain of `draft` tokens, or a tree of shape
    `draft`, in every row and step."""

    want = Want()
    plans_across_rows = False

    def __init__(self, draft: int | Shape) -> None:
        self.shape = draft if isinstance(draft, Shape) else None
        self.depth = draft.depth if isinstance(draft, Shape) else draft
        if self.depth < 0:
            raise ValueError(f"depth is {self.depth}; use 0 for no speculation or a positive number")

    def plan(self, ctx: Context) -> Plan:
        return Plan((self.depth,) * len(ctx.slots), self.shape)

    def observe(self, step: Step) -> None:
        """Does nothing: the plan never changes."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state is kept per request."""
