"""SpecBranch's draft (Shen et al. 2025): several branches that begin with the most probable tokens.

Letters: R rows with a draft, K most probable tokens.
"""

from __future__ import annotations

import torch

from outpace.core.context import Context
from outpace.core.contracts import Plan
from outpace.core.device_copies import indices
from outpace.core.grower import Grower
from outpace.core.tree import TokenTree
from outpace.drafters.model.grow import Read
from outpace.drafters.model.long_chains import lengthen, logits_after
from outpace.sampling.topk import at_least_float32, top
from outpace.sampling.warp import warp


def branches(ctx: Context, plan: Plan, read: Read, *, most: int, sampled: bool) -> TokenTree:
    """A draft (drafters.model.grow.Growth) of `num_branches` branches of `plan.depth` tokens in each row.

    Their first tokens are the most probable ones, chosen and so without a claim. The others are drawn in rows
    that sample unless `sampled` is false, and then carry one."""
    grower = Grower(ctx.roots, confidence=True)
    rows = [row for row, depth in enumerate(plan.depth) if depth]
    if not rows:
        return grower.tree()
    logits = at_least_float32(logits_after(grower, ctx, read, rows))
    q = logits.softmax(-1)
    drawn = [sampled and not ctx.sampling[row].greedy for row in rows]
    if any(drawn):
        warped = warp(logits, [ctx.sampling[row] for row in rows])
        q = torch.where(torch.tensor(drawn, device=q.device)[:, None], warped, q)
    probs, tokens = top(q, min(most, q.shape[-1]))  # (R, K) each
    counts = [num_branches(largest, most) for largest in probs[:, 0].tolist()]
    firsts = [(index, rank) for index, count in enumerate(counts) for rank in range(min(count, len(q[0])))]
    at, begin = [rows[index] for index, _ in firsts], len(grower)
    chosen = indices([index * probs.shape[1] + rank for index, rank in firsts], q.device)
    nodes = grower.add_chosen(at, tokens.flatten()[chosen], probs.flatten()[chosen])
    missing = {node: plan.depth[row] - 1 for node, row in zip(nodes, at, strict=True)}
    lengthen(grower, ctx, read, begin, missing, sampled=sampled)
    return grower.tree()


def num_branches(largest: float, most: int) -> int:
    """How many branches there are where the largest draft probability is this: the more, the smaller."""
    return max(1, int(most * (1 - largest)))
