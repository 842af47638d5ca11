"""Mutants of drafts from windows of masks: the q recorded for a token is not the one from which the token in
the draft was drawn."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Drafter, Plan, Target
from outpace.core.grower import Grower
from outpace.core.tree import TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import Read, chosen_chains, grow, with_replacement
from outpace.drafters.model.windows import Window, in_equal_parts, in_windows, reveal
from outpace.proof.mutants.drafters import picked


def confidence_claimed(draft: Target, mask: int = 0) -> Drafter:
    """Mutant: two tokens in two forwards, the more confident one first, each recorded as drawn from the
    distribution of its forward. That it was the more confident one, or what the other one is, changes it."""

    def claimed(ctx: Context, plan: Plan, read: Read) -> TokenTree:
        window = Window(2, mask)
        found = reveal(ctx, plan, read, window=window, order=partial(in_equal_parts, num_forwards=2))
        grower = Grower(ctx.roots)
        chosen_chains(grower, [[token for token, _ in of_row] for of_row in found])
        tree, first = grower.tree(), len(found)
        forest = tree.forest
        drawn = [found[forest.rows[node]][forest.depths[node] - 1][1] for node in range(first, len(tree))]
        row = (*[-1] * first, *range(len(drawn)))
        return replace(tree, claim=Drawn(torch.stack(drawn), row, (False,) * len(drawn)))

    return DraftModel(draft, growth=claimed, rereads=True)


def best_draft_claimed(draft: Target) -> Drafter:
    """Mutant: of the drafts drawn from one window the most probable one, recorded as if it had been drawn
    alone."""

    def claimed(ctx: Context, plan: Plan, read: Read) -> TokenTree:
        growth = partial(grow, children=with_replacement)
        tree = in_windows(ctx, plan, read, growth=growth, window=Window(2, mask=0))
        claim, forest, tokens = tree.claim, tree.forest, tree.tokens.tolist()
        if not isinstance(claim, Drawn):
            return tree
        probs, kept = [1.0] * len(tree), set(range(forest.num_rows))
        for node in range(forest.num_rows, len(tree)):
            q = float(claim.q[claim.row[node], tokens[node]])
            probs[node] = q * probs[forest.parents[node]]
        for nodes in forest.nodes:
            leaves = [node for node in nodes if not forest.children[node]]
            kept |= set(forest.path(max(leaves, key=lambda leaf: probs[leaf])))
        return picked(tree, claim, sorted(kept))

    return DraftModel(draft, growth=claimed, rereads=True)
