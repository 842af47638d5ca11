"""Several methods in one batch: each request is drafted by the method that was chosen for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Step, Want
from outpace.drafters.compose.combined import Combined
from outpace.drafters.compose.rows import draft_of_rows, joined_drafts, step_of_rows


def routed(methods: Mapping[str, Parts]) -> tuple[Parts, RoutedDrafter]:
    """One method out of several with the same target, and its drafter, which is told which request uses
    which. The verifier is that of the first; TypeError if it is not exact for the drafts of another."""
    drafter = RoutedDrafter(methods)
    first = next(iter(methods.values()))
    limit = min(parts.prompt_part for parts in methods.values())
    return replace(first, drafter=drafter, controller=_NoController(), prompt_part=limit), drafter


class RoutedDrafter(Combined):
    """Implementation of core.contracts.Drafter with the drafter and the controller of one method per
    request."""

    def __init__(self, methods: Mapping[str, Parts]) -> None:
        """`methods`: by name; a request uses the first unless another is chosen."""
        super().__init__(*[parts.drafter for parts in methods.values()])
        self._methods = dict(methods)
        self._first = next(iter(self._methods))
        self._chosen: dict[int, str] = {}  # slot -> method
        self._max_depth: dict[int, int] = {}  # slot -> largest draft depth
        for parts in methods.values():
            self.want |= parts.want

    def choose(self, slot: int, method: str | None = None, max_depth: int | None = None) -> None:
        """Choose the method and the largest draft depth of the request in this slot, before its first step;
        None: the first method, and as deep as it drafts. KeyError for an unknown method."""
        if method is not None:
            self._methods[method]
            self._chosen[slot] = method
        if max_depth is not None:
            self._max_depth[slot] = max_depth

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        limits = zip(ctx.slots, plan.depth, strict=True)
        depth = [min(limit, self._max_depth.get(slot, limit)) for slot, limit in limits]
        groups = self._groups(ctx.slots)
        drafts = [draft_of_rows(self._methods[name], ctx, rows, depth) for name, rows in groups.items()]
        return joined_drafts(drafts, list(groups.values()))

    def observe(self, step: Step) -> None:
        for name, rows in self._groups(step.ctx.slots).items():
            parts = self._methods[name]
            own = step
            if len(rows) < len(step.ctx.slots):  # the times are those of all rows, not of these
                own = replace(step_of_rows(step, rows), seconds={})
            parts.drafter.observe(own)
            parts.controller.observe(own)

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._chosen.pop(slot, None)
            self._max_depth.pop(slot, None)
        with ExitStack() as stack:  # calls all of them, also where one raises
            for parts in self._methods.values():
                stack.callback(parts.drafter.release, slots)
                stack.callback(parts.controller.release, slots)

    def _groups(self, slots: Sequence[int]) -> dict[str, list[int]]:
        """Method -> the rows that use it, for the methods that any row uses."""
        groups: dict[str, list[int]] = {}
        for row, slot in enumerate(slots):
            groups.setdefault(self._chosen.get(slot, self._first), []).append(row)
        return groups


class _NoController:
    """Implementation of core.contracts.Controller whose plans limit nothing: each method plans its own
    drafts."""

    want = Want()
    plans_across_rows = False

    def plan(self, ctx: Context) -> Plan:
        return Plan(ctx.max_draft_depth)

    def observe(self, step: Step) -> None:
        """Does nothing: the methods' own controllers observe."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state is kept per request."""
