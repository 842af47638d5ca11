"""A drafter whose errors end the drafting of one request, not the decoding of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outpace.core.claim import DrawnBeside
from outpace.core.context import Context
from outpace.core.contract_checks import check_draft
from outpace.core.contracts import Draft, Drafter, Plan, Step
from outpace.core.row_error import DraftFailed, RowError
from outpace.core.tree import TokenTree
from outpace.drafters.compose.combined import Combined
from outpace.drafters.compose.rows import context_of_rows, joined_rows, plan_of_rows


class GuardedDrafter(Combined):
    """Implementation of core.contracts.Drafter: another drafter, and no drafts for requests for which that
    raises an exception or drafts what breaks its contract, from that step until they end. Nor are there in a
    slot whose release raises one, until a release of it succeeds, which sessions call again before the next
    request: what the drafter still holds of one request must not reach another.

    An exception that depends on the tokens drawn in a draft, not on the text alone, makes that one step
    inexact: the drafts without it are no longer drawn from q.

    A request for which the drafter fails ends with an error (`RowError`) where its texts would have another
    distribution without drafts, as with `DrawnBeside`.
    """

    def __init__(
        self,
        drafter: Drafter,
        vocab: int,  # of the target
        on_error: Callable[[int | None, Exception], None],
    ) -> None:
        """`on_error` is called with the slot and the exception; with None instead of the slot if the drafter
        failed to learn from a step."""
        super().__init__(drafter)
        self._drafter, self._vocab, self._on_error = drafter, vocab, on_error
        self._failed: set[int] = set()  # slots of requests without drafts

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        draft = self._propose(ctx, plan)
        if self._failed and DrawnBeside in self.claims:
            for slot in ctx.slots:
                if slot in self._failed:
                    raise DraftFailed(
                        slot,
                        "the draft model failed, and this method needs it after every token: see the log",
                    )
        return draft

    def _propose(self, ctx: Context, plan: Plan) -> Draft:
        rows = [row for row, slot in enumerate(ctx.slots) if slot not in self._failed]
        if len(rows) == len(ctx.slots):
            try:
                return self._checked(ctx, plan)
            except RowError:
                raise
            except Exception as error:
                if len(rows) == 1:
                    self._fail(ctx.slots[0], error)
                    return Draft(TokenTree.roots(ctx.roots))
        drafts: dict[int, Draft] = {}
        for row in rows:  # one at a time, to find those that fail
            try:
                drafts[row] = self._checked(context_of_rows(ctx, [row]), plan_of_rows(plan, [row]))
            except RowError:
                raise
            except Exception as error:
                self._fail(ctx.slots[row], error)
        trees = [
            drafts[row].tree if row in drafts else TokenTree.roots(root)
            for row, root in enumerate(ctx.roots.split(1))
        ]
        return Draft(
            joined_rows(trees, [[row] for row in range(len(trees))]),
            sum(draft.forwards for draft in drafts.values()),
            sum(draft.seconds for draft in drafts.values()),
        )

    def _checked(self, ctx: Context, plan: Plan) -> Draft:
        return check_draft(self._drafter.propose(ctx, plan), ctx.roots, self._vocab, self.claims)

    def _fail(self, slot: int, error: Exception) -> None:
        self._failed.add(slot)
        self._on_error(slot, error)

    def observe(self, step: Step) -> None:
        try:
            super().observe(step)
        except Exception as error:
            self._on_error(None, error)

    def release(self, slots: Sequence[int]) -> None:
        try:
            super().release(slots)
        except Exception as error:
            if len(slots) > 1:
                for slot in slots:  # one at a time, to find those that fail
                    self.release([slot])
            elif slots:
                self._fail(slots[0], error)
        else:
            self._failed.difference_update(slots)
