"""Looked-up drafts where the text repeats, drafts of a model where it does not."""

from __future__ import annotations

from dataclasses import replace

from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Found, Plan
from outpace.core.tree import TokenTree
from outpace.drafters.compose.combined import Combined
from outpace.drafters.lookup.text_lookup import TextLookup, first_found, within
from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree, candidate_tree


class LookupOrDraft(Combined):
    """Implementation of core.contracts.Drafter: in each row a part of the chain that `lookup` finds, or a
    chain of `drafter`, as the plan's `choice` says. Which of them follows from committed tokens, earlier
    steps and measured times, before a token is drawn, so that the q recorded by `drafter` is the distribution
    of its tokens."""

    def __init__(self, lookup: TextLookup, drafter: Drafter) -> None:
        super().__init__(drafter, lookups=[lookup])
        self._lookup, self._drafter = lookup, drafter

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        assert plan.choice is not None
        if not any(plan.depth):
            return Draft(TokenTree.roots(ctx.roots))  # the lookup reads the text when it is asked again
        found: list[CandidateTree] = []

        def look_up() -> list[Found]:
            found[:] = self._lookup.look_up(ctx, plan)
            return [(each.matched, each.tokens) for each in found]

        sizes = plan.choice(plan.depth, look_up)
        drafts = replace(plan, depth=tuple([each[1] for each in sizes]))
        if not any(looked_up for looked_up, _ in sizes):
            return self._drafter.propose(ctx, drafts)
        kept = [
            within(each, looked_up) if looked_up else NO_CANDIDATES
            for each, (looked_up, _) in zip(found, sizes, strict=True)
        ]
        if not any(drafts.depth):
            return Draft(candidate_tree(ctx.roots, kept))
        return first_found(ctx, kept, self._drafter, drafts)
