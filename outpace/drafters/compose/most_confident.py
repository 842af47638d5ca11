"""Several drafters at once, of which the one that is most confident of its draft has it verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Plan
from outpace.core.tree import TokenTree
from outpace.drafters.compose.rows import joined_rows, tree_of_rows
from outpace.drafters.compose.union import UnionDrafter, independent_noise


class MostConfident(UnionDrafter):
    """Implementation of core.contracts.Drafter that gives each of `drafters` the same plan. In each row the
    tree is kept whose draft tokens have the largest mean draft probability, each given the tokens before it;
    of equal ones the first.

    For drafters that choose tokens, not for those that draw them: q is not the distribution of drawn tokens
    in a tree that was kept for its tokens."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        """TypeError for drafters that draw tokens."""
        super().__init__(drafters)
        if self.claims:
            raise TypeError(
                f"a draft that claims {self.claims[0].__name__} cannot be chosen by its tokens: use drafters "
                "of the most probable tokens"
            )

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        drafts = [
            drafter.propose(replace(ctx, noise=independent_noise(ctx.noise, index)) if index else ctx, plan)
            for index, drafter in enumerate(self._drafters)
        ]
        confidence = [mean_draft_probs(draft.tree) for draft in drafts]
        rows: dict[int, list[int]] = {}  # drafter -> the rows whose trees are its
        for row in range(len(ctx.slots)):
            best = max(range(len(drafts)), key=lambda index: confidence[index][row])
            rows.setdefault(best, []).append(row)
        trees = [drafts[index].tree for index in rows]
        if len(trees) > 1:
            parts = [tree_of_rows(tree, own) for tree, own in zip(trees, rows.values(), strict=True)]
            trees = [joined_rows(parts, list(rows.values()))]
        return Draft(trees[0], sum(draft.forwards for draft in drafts), sum(each.seconds for each in drafts))


def mean_draft_probs(tree: TokenTree) -> list[float]:  # (B,)
    """The mean draft probability of each row's draft tokens, given the tokens before them; 0 without any."""
    if tree.confidence is None:
        if len(tree) > tree.forest.num_rows:
            raise TypeError(
                "drafts without draft probabilities cannot be compared: use drafters that keep them"
            )
        return [0.0] * len(tree)
    probs: list[float] = tree.confidence.exp().tolist()
    return [sum(probs[node] for node in nodes[1:]) / max(1, len(nodes) - 1) for nodes in tree.forest.nodes]
