"""Several methods in one batch: each request is drafted by the method that was chosen for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Step, Want
from outpace.core.tree import TokenTree
from outpace.drafters.compose.rows import context_of_rows, joined_rows, step_of_rows


def routed(methods: Mapping[str, Parts]) -> tuple[Parts, RoutedDrafter]:
    """One method out of several with the same target, and its drafter, which is told which request uses
    which. The verifier is that of the first; TypeError if it is not exact for the drafts of another."""
    drafter = RoutedDrafter(methods)
    first = next(iter(methods.values()))
    return Parts(first.target, drafter, first.verifier, _NoController()), drafter


class RoutedDrafter:
    """Implementation of core.contracts.Drafter with the drafter and the controller of one method per
    request."""

    def __init__(self, methods: Mapping[str, Parts]) -> None:
        """`methods`: by name; a request uses the first unless another is chosen."""
        self._methods = dict(methods)
        self._first = next(iter(self._methods))
        self._chosen: dict[int, str] = {}  # slot -> method
        self._max_depth: dict[int, int] = {}  # slot -> largest draft depth
        drafters = [parts.drafter for parts in methods.values()]
        self.want = Want()
        for parts in methods.values():
            self.want |= parts.want
        self.claims: tuple[type[Claim], ...] = tuple({claim for each in drafters for claim in each.claims})
        self.learns_across_rows = any(each.learns_across_rows for each in drafters)
        self.drafts_across_rows = any(each.drafts_across_rows for each in drafters)

    def choose(self, slot: int, method: str | None = None, max_depth: int | None = None) -> None:
        """Choose the method and the largest draft depth of the request in this slot, before its first step;
        None: the first method, and as deep as it drafts. KeyError for an unknown method."""
        if method is not None:
            self._methods[method]
            self._chosen[slot] = method
        if max_depth is not None:
            self._max_depth[slot] = max_depth

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        groups = self._groups(ctx.slots)
        drafts = [self._draft(ctx, name, rows) for name, rows in groups.items()]
        if len(drafts) == 1:
            return drafts[0]
        tree = joined_rows([draft.tree for draft in drafts], list(groups.values()))
        return Draft(tree, sum(draft.forwards for draft in drafts), sum(draft.seconds for draft in drafts))

    def _draft(self, ctx: Context, name: str, rows: Sequence[int]) -> Draft:
        own = ctx if len(rows) == len(ctx.slots) else context_of_rows(ctx, rows)
        if self._max_depth:
            depths = zip(own.slots, own.max_draft_depth, strict=True)
            limits = tuple([min(depth, self._max_depth.get(slot, depth)) for slot, depth in depths])
            own = replace(own, max_draft_depth=limits)
        if not any(own.max_draft_depth):
            return Draft(TokenTree.roots(own.roots))
        parts = self._methods[name]
        return parts.drafter.propose(own, parts.controller.plan(own).within(own.max_draft_depth))

    def observe(self, step: Step) -> None:
        for name, rows in self._groups(step.ctx.slots).items():
            parts = self._methods[name]
            own = step
            if len(rows) < len(step.ctx.slots):  # the times are those of all rows, not of these
                own = replace(step_of_rows(step, rows), seconds={})
            parts.drafter.observe(own)
            parts.controller.observe(own)

    def release(self, slots: Sequence[int]) -> None:
        for parts in self._methods.values():
            parts.drafter.release(slots)
            parts.controller.release(slots)
        for slot in slots:
            self._chosen.pop(slot, None)
            self._max_depth.pop(slot, None)

    def _groups(self, slots: Sequence[int]) -> dict[str, list[int]]:
        """Method -> the rows that use it, for the methods that any row uses."""
        groups: dict[str, list[int]] = {}
        for row, slot in enumerate(slots):
            groups.setdefault(self._chosen.get(slot, self._first), []).append(row)
        return groups


class _NoController:
    """Implementation of core.contracts.Controller whose plans are not read."""

    want = Want()
    plans_across_rows = False

    def plan(self, ctx: Context) -> Plan:
        return Plan(ctx.max_draft_depth)

    def observe(self, step: Step) -> None:
        """Does nothing: the methods' own controllers observe."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state is kept per request."""
