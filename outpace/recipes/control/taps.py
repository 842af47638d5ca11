"""TAPS (Zbib et al. 2026): several heads for one target, each for texts of its kind, draft EAGLE-2's trees.

New here: MostConfident, which verifies the tree of the head that is most confident of it, and `averaged`, a
head with the mean of several heads' weights. Reuses: UnionDrafter, FeatureDrafter, dynamic_tree, Match,
Fixed. Exact at any temperature: all tokens are chosen by probability, carry no claim and are verified by
matching, so that neither the choice of a tree nor the merging of trees changes the distribution.

All heads draft in every step and read all generated tokens, whichever drafted them. With the routing "merged"
the target verifies the trees of all heads as one; tokens that several heads draft after the same path are one
node. At temperature 0 such a step generates as many tokens as that of the best head would. Compare it with
one head and as many nodes in all: two heads draft up to twice `num_nodes`. "confidence" compares the mean
draft probability of the trees' tokens, each given those before it; the paper leaves open which probability is
meant. "average" is one head with the mean of the weights, a baseline: in the paper it drafts worse than each
of the heads.

`outpace train hass` or `eagle` with data of one kind makes such a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Parts, Plan, Target, recipe
from outpace.core.tree import TokenTree
from outpace.drafters.compose.rows import joined_rows, tree_of_rows
from outpace.drafters.compose.union import UnionDrafter, independent_noise
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.models.heads.averaged import averaged
from outpace.models.heads.head_model import AnyEagleModel
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2603.27027", family="control and routing")
def taps(
    target: Target,
    *,
    heads: tuple[AnyEagleModel, ...],
    routing: Literal["merged", "confidence", "average"] = "merged",
    depth: int = 6,
    width: int = 10,
    num_nodes: int = 59,
) -> Parts:
    """Trees of the most probable paths of several heads, verified by matching.

    Args:
        heads: folders with heads of EAGLE, HASS or EAGLE-3 that were trained for the target, one or more
        routing: verify all trees as one, the tree of the most confident head, or that of an averaged head
        depth: longest path that is drafted; each head runs as often
        width: paths that each head extends per level, and tokens that it tries after each
        num_nodes: draft tokens of each head in a step, those of the most probable paths
    """
    if not heads:
        raise ValueError("taps needs heads: give one head or more")
    used = [averaged(heads, target)] if routing == "average" else heads
    growth = partial(dynamic_tree, width=width, num_nodes=num_nodes)
    drafters = [FeatureDrafter(head, target.vocab, growth, sampled=False) for head in used]
    drafter = MostConfident(drafters) if routing == "confidence" else UnionDrafter(drafters)
    return Parts(target, drafter, Match(), Fixed(depth))


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
