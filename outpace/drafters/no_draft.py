"""No draft: plain autoregressive decoding as a drafter."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import NOTHING, Draft, Plan, Step, Want
from outpace.core.tree import TokenTree


class NoDraft:
    """Implementation of core.contracts.Drafter whose trees consist of the roots alone, so that every step is
    plain decoding."""

    claims: tuple[type[Claim], ...] = ()
    learns_across_rows = drafts_across_rows = False

    def __init__(self, want: Want = NOTHING) -> None:
        """`want`: outputs of the target that are asked for on behalf of others."""
        self.want = want

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        return Draft(TokenTree.roots(ctx.roots))

    def observe(self, step: Step) -> None:
        """Does nothing: there is nothing to learn."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state is kept per request."""
