"""Mask slots behind the nodes of a draft tree, in which a model gives the distributions of further tokens.

Letters: A anchors, k levels, K logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Plan
from outpace.core.device_copies import indices
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.model.grow import Growth, Read
from outpace.drafters.model.look_ahead import LookAhead


def in_masks(ctx: Context, plan: Plan, read: Read, *, growth: Growth, mask: int) -> TokenTree:
    """The tree of another growth, from one forward over the roots and a chain of mask tokens behind each
    (An et al. 2025, PARD). A KV cache may keep the entry of a mask where a text goes on with that token:
    the entry is the token's then."""
    levels = max(plan.depth, default=0)
    if not levels:
        return TokenTree.roots(ctx.roots)

    def read_ahead(tree: TokenTree, anchors: Sequence[int], levels: int) -> Tensor:  # (A, k, K)
        # no masks beyond a row's draft: the model may not read positions so far behind the text
        counts = [max(0, plan.depth[tree.forest.rows[anchor]] - 1) for anchor in anchors]
        masked, nodes = with_masks(tree, anchors, torch.full((levels - 1,), mask), counts)
        _, logits = read(masked)
        return logits[indices(nodes, logits.device)].view(len(anchors), levels, -1)

    return growth(ctx, plan, LookAhead(read_ahead, (levels,)))


def with_masks(
    tree: TokenTree,
    anchors: Sequence[int],
    ids: Tensor,
    counts: Sequence[int] | None = None,
    *,
    end: int | None = None,  # a token behind the masks of each anchor
) -> tuple[TokenTree, list[int]]:  # (masks,), (A,) -> the tree, (A × (1 + masks),)
    """The tree with a chain of these mask tokens below each anchor, of at most `counts` of them; and for each
    anchor itself and its masks: in place of those that it lacks, its last one. New nodes follow level by
    level."""
    parents, tokens = list(tree.forest.parents), [tree.tokens.cpu()]
    nodes = [[anchor] for anchor in anchors]
    for level in range(len(ids)):
        for number, of_anchor in enumerate(nodes):
            if counts is None or level < counts[number]:
                parents.append(of_anchor[-1])
                of_anchor.append(len(parents) - 1)
                tokens.append(ids[level : level + 1])
            else:
                of_anchor.append(of_anchor[-1])
    if end is not None:
        parents += [of_anchor[-1] for of_anchor in nodes]
        tokens.append(torch.full((len(nodes),), end))
    forest = Forest.of(parents, tree.forest.num_rows)
    return TokenTree(torch.cat(tokens), forest), [node for of_anchor in nodes for node in of_anchor]
