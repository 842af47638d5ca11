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
        masked = with_masks(tree, anchors, torch.full((levels - 1,), mask))
        _, logits = read(masked)
        return at_masks(logits, tree, anchors, levels, with_anchors=True)

    return growth(ctx, plan, LookAhead(read_ahead, (levels,)))


def with_masks(tree: TokenTree, anchors: Sequence[int], ids: Tensor) -> TokenTree:  # (masks,)
    """The tree with a chain of these mask tokens below each anchor, whose nodes follow level by level."""
    first, count = len(tree), len(anchors)
    above = [*anchors, *range(first, first + count * len(ids))][: count * len(ids)]
    forest = Forest.of([*tree.forest.parents, *above], tree.forest.num_rows)
    return TokenTree(torch.cat((tree.tokens.cpu(), ids.repeat_interleave(count))), forest)


def at_masks(
    logits: Tensor, tree: TokenTree, anchors: Sequence[int], levels: int, *, with_anchors: bool
) -> Tensor:  # (A, k, K)
    """From the logits of all nodes of `with_masks(tree, ...)`, those of the tokens behind each anchor: at its
    masks alone, or first at the anchor itself."""
    first, count = len(tree), len(anchors)
    end = first + count * (levels - with_anchors)
    wanted = [
        node
        for number, anchor in enumerate(anchors)
        for node in (*[anchor] * with_anchors, *range(first + number, end, count))
    ]
    return logits[indices(wanted, logits.device)].view(count, levels, -1)
