"""Mutants of early stopping by a drawn token: the token that ends a draft is dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Frontier, Parts, Plan
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.head_model import HeadModel
from outpace.models.predictors.draft_length.predictor import untrained_draft_length_predictor
from outpace.models.table import TableTarget
from outpace.proof.mutants.drafters import picked
from outpace.recipes.control.adaeagle import PredictedLength
from outpace.verifiers.rejection import Rejection


def without_ends(propose: Callable[[Context, Plan], Draft], ctx: Context, plan: Plan) -> Draft:
    """The draft without the tokens at which `plan.stop` ends chains, as if they had not been drawn; the
    recorded q still includes tokens that would have been dropped."""
    ended: set[tuple[int, int]] = set()  # (row, depth) of the tokens that ended a draft
    stop = plan.stop
    assert stop is not None

    def watched(frontier: Frontier) -> list[bool]:
        stopped = stop(frontier)
        for row, path, ends in zip(frontier.rows, frontier.paths, stopped, strict=True):
            if ends:
                ended.add((row, len(path)))
        return stopped

    draft = propose(ctx, replace(plan, stop=watched))
    tree, claim = draft.tree, draft.tree.claim
    if not isinstance(claim, Drawn):
        return draft
    forest = tree.forest
    kept = [node for node in range(len(tree)) if (forest.rows[node], forest.depths[node]) not in ended]
    return replace(draft, tree=picked(tree, claim, kept))


class EndDropped(DraftModel):
    """Mutant: a draft model's chains without the tokens that ended them."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        return without_ends(super().propose, ctx, plan)


class HeadEndDropped(FeatureDrafter):
    """Mutant: a head's chains without the tokens that ended them."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        return without_ends(super().propose, ctx, plan)


def ends_of_low_path_probability(target: TableTarget) -> Parts:
    """AdaEAGLE that drops the token at which the draft's probability falls below the threshold, with a head
    that draws both tokens for which it does and tokens for which it does not."""
    opened = HeadModel(untrained_eagle(target, seed=3))
    drafter = HeadEndDropped(opened, target.vocab, partial(grow, sampled=True), sampled=True)
    controller = PredictedLength(untrained_draft_length_predictor(target), target.embed, ddd=True)
    return Parts(target, drafter, Rejection(), controller)
