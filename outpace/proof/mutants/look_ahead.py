"""Mutants of drafts of which one forward gives several levels: the q recorded for a token is not the one from
which it was drawn."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Drafter, Plan
from outpace.core.tree import TokenTree
from outpace.drafters.model.block_drafter import BlockDrafter
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import Read, grow
from outpace.drafters.model.tail_reader import TailReader
from outpace.models.heads.falcon.head import untrained_falcon
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.jakiro.head import untrained_jakiro
from outpace.models.table import TableTarget
from outpace.proof.mutants.drafters import reclaimed


def level_before_claimed(target: TableTarget) -> Drafter:
    """Mutant: drafts two tokens from one forward of Jakiro's head, and records for the second one the q of
    the first."""
    head, reader = HeadModel(untrained_jakiro(target)), partial(TailReader, depth=2)
    return FeatureDrafter(head, target.vocab, _of_the_level_before, sampled=True, reader=reader)


def conditioned_on_the_first_token(target: TableTarget) -> Drafter:
    """Mutant: drafts two tokens from one forward of Falcon's head, and records for the second one a q that
    depends on the first."""
    head = HeadModel(untrained_falcon(target))
    return BlockDrafter(head, target.vocab, _moved_by_the_token_before, sampled=True)


def _moved_by_the_token_before(ctx: Context, plan: Plan, read: Read) -> TokenTree:
    tree = grow(ctx, plan, read)
    forest, tokens = tree.forest, tree.tokens

    def moved(claim: Drawn, node: int) -> Tensor | None:
        by = int(tokens[forest.parents[node]])
        return claim.q[claim.row[node]].roll(by, 0) if forest.depths[node] == 2 else None

    return reclaimed(tree, moved)


def _of_the_level_before(ctx: Context, plan: Plan, read: Read) -> TokenTree:
    tree = grow(ctx, plan, read)
    forest = tree.forest

    def above(claim: Drawn, node: int) -> Tensor | None:
        return claim.q[claim.row[forest.parents[node]]] if forest.depths[node] == 2 else None

    return reclaimed(tree, above)
