"""A separate drafter per row or per group of rows, for distribution tests of drafters that learn across rows.

State learnt from other rows is fixed before a step and independent of the step's noise, so it cannot bias the
output, but the run could not be repeated in another batch. With a drafter per row, a row learns only from its
own steps; with a drafter per group, only from the group's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Parts, Plan, Step
from outpace.drafters.compose.rows import context_of_rows, joined_rows, plan_of_rows, step_of_rows
from outpace.proof.per_row_controller import controllers_by_row, with_even_times


def row_by_row(
    build: Callable[[], Parts],
    history: Callable[[Parts], None]
    | None = None,  # decodes earlier requests, for drafters that learn from them
    shared: Sequence[object] = (),  # models: not copied, all drafters use the same objects
) -> Callable[[], Parts]:
    """`build` itself if its drafter does not learn across rows; else a function that returns its parts with a
    copy of the drafter per row, each copied after `history` has run."""
    example = build()
    if not example.drafter.learns_across_rows:
        return build
    if history is not None:
        history(example)

    @torch.inference_mode(False)  # tensors copied in that mode take part in no gradient, as learning needs
    def drafter() -> Drafter:
        return copy.deepcopy(example.drafter, {id(model): model for model in shared})

    return lambda: replace(build(), drafter=Apart(example.drafter, drafter))


def group_by_group(build: Callable[[], Parts], groups: Sequence[int]) -> Parts:
    """The parts with a new drafter per group of rows, and a new controller if it plans across rows;
    `groups[slot]` is the group of a slot."""
    parts = controllers_by_row(build, groups)()
    return replace(parts, drafter=Apart(parts.drafter, lambda: build().drafter, groups))


class Apart:
    """Implementation of core.contracts.Drafter: one drafter per slot, or per group of slots, created by
    `make`. `example` has the `want` and `claims` of all of them."""

    learns_across_rows = drafts_across_rows = False

    def __init__(
        self, example: Drafter, make: Callable[[], Drafter], groups: Sequence[int] | None = None
    ) -> None:
        self._make, self._groups, self.want = make, groups, example.want
        self.claims: tuple[type[Claim], ...] = example.claims
        self._drafters: dict[int, Drafter] = {}  # group of slots -> the drafter they share
        # group of slots that share a drafter -> its slots with unfinished requests
        self._open: dict[int, set[int]] = {}

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        parts = list(self._divided(ctx.slots))
        drafts = [
            drafter.propose(context_of_rows(ctx, rows), plan_of_rows(plan, rows)) for drafter, rows in parts
        ]
        forwards, seconds = sum(draft.forwards for draft in drafts), sum(draft.seconds for draft in drafts)
        tree = joined_rows([draft.tree for draft in drafts], [rows for _, rows in parts])
        return Draft(tree, forwards, seconds)

    def observe(self, step: Step) -> None:
        ended = {step.ctx.slots[row] for row in step.finished}
        for drafter, rows in self._divided(step.ctx.slots):
            # a drafter without unfinished requests is not used again
            if not self._open[self._group(step.ctx.slots[rows[0]])] <= ended:
                # a drafter that combines methods may contain controllers that use times
                drafter.observe(with_even_times(step_of_rows(step, rows)))

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            group = self._group(slot)
            if group in self._drafters:
                self._open[group].discard(slot)
                if self._open[group]:
                    self._drafters[group].release([slot])
                else:
                    del self._drafters[group], self._open[group]

    def _group(self, slot: int) -> int:
        return self._groups[slot] if self._groups else slot

    def _divided(self, slots: Sequence[int]) -> list[tuple[Drafter, list[int]]]:
        """(drafter, rows of the batch that it drafts for) of every group in `slots`."""
        rows: dict[int, list[int]] = {}
        for row, slot in enumerate(slots):
            group = self._group(slot)
            rows.setdefault(group, []).append(row)
            if group not in self._drafters:
                self._drafters[group], self._open[group] = self._make(), set()
            self._open[group].add(slot)
        return [(self._drafters[group], group_rows) for group, group_rows in rows.items()]
