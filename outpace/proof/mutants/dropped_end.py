"""Mutants of stops that look at a drawn token: the token that ends a draft is dropped."""

from __future__ import annotations

from dataclasses import replace

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Frontier, Plan
from outpace.drafters.model.draft_model import DraftModel
from outpace.proof.mutants.drafters import picked


class EndDropped(DraftModel):
    """Mutant: leaves the token with which the plan's stop ends a chain out of the draft, as if it had not
    been drawn; q of the remaining tokens is that of all that might have been drawn."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        ended: set[tuple[int, int]] = set()  # (row, depth) of the tokens that ended a draft
        stop = plan.stop
        assert stop is not None

        def watched(frontier: Frontier) -> list[bool]:
            stopped = stop(frontier)
            for row, path, ends in zip(frontier.rows, frontier.paths, stopped, strict=True):
                if ends:
                    ended.add((row, len(path)))
            return stopped

        draft = super().propose(ctx, replace(plan, stop=watched))
        tree, claim = draft.tree, draft.tree.claim
        if not isinstance(claim, Drawn):
            return draft
        forest = tree.forest
        kept = [node for node in range(len(tree)) if (forest.rows[node], forest.depths[node]) not in ended]
        return replace(draft, tree=picked(tree, claim, kept))
