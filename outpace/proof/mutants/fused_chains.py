"""Mutant of draft models that draft one chain together: its tokens are claimed as drawn by one of them."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Claim, Drawn
from outpace.core.contracts import Context, Draft, Parts, Plan, TokenTree
from outpace.models.table import TableTarget
from outpace.proof.reference import table_logits
from outpace.recipes.control.cosine.fused_chains import FusedChains
from outpace.recipes.control.cosine.routing_scores import RoutingScores
from outpace.sampling.warp import warp
from outpace.verifiers.rejection import Rejection


class ClaimedAsDrawn(FusedChains):
    """Mutant: claims that each fused token was drawn from the distribution of the first draft model. Since it
    was chosen, it should be accepted with probability p, but is accepted with min(1, p / q)."""

    claims: tuple[type[Claim], ...] = (Drawn,)

    def __init__(self, models: Sequence[TableTarget], routing: RoutingScores) -> None:
        super().__init__(models, routing)
        self._logits = table_logits(models[0].logits, models[0].state)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        tree = super().propose(ctx, plan).tree.first_chain()  # fused tokens are first children
        forest, tokens, first = tree.forest, tree.tokens.tolist(), tree.forest.num_rows
        rows = forest.rows[first:]
        texts = [
            (*ctx.tokens[row].tolist(), *(tokens[above] for above in forest.path(node)[1:-1]))
            for node, row in enumerate(rows, first)
        ]
        if not texts:
            return Draft(tree)
        q = warp(self._logits(texts), [ctx.sampling[row] for row in rows])
        claim = Drawn(q, (*[-1] * first, *range(len(rows))), (False,) * len(rows))
        return Draft(TokenTree(tree.tokens, forest, claim=claim))


def fused(target: TableTarget, drafts: Sequence[TableTarget]) -> Parts:
    """Parts in which all these draft models draft together, with the mutant's claim."""
    routing = RoutingScores(len(drafts), len(drafts), beta=0.8, explore=0.0)
    return Parts(target, ClaimedAsDrawn(drafts, routing), Rejection(), Fixed(2))
