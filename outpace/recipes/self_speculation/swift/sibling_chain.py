"""A chain whose tokens have siblings: the more of them, the less sure the draft model is of the token.

Letters: F nodes that get children, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Frontier, Plan
from outpace.core.grower import Grower
from outpace.core.noise import Noise
from outpace.core.tree import TokenTree
from outpace.drafters.model.grow import Read, add_children, going_on, without_replacement
from outpace.sampling.adjust import adjust
from outpace.sampling.topk import at_least_float32
from outpace.sampling.warp import warp

# (probability of the most probable token above which it holds, children if they are the most probable tokens,
# children if they are drawn)
WIDTHS = ((0.95, 3, 1), (0.8, 5, 3), (0.5, 8, 5), (-1.0, 10, 10))


def sibling_chain(ctx: Context, plan: Plan, read: Read, *, sampled: bool, siblings: bool = True) -> TokenTree:
    """The tree of SWIFT (Xia et al. 2025) below every row's root: of the children of a node the first is
    extended. How many there are follows from the largest draft probability at the node, before any of them is
    drawn. With `sampled`, rows with a temperature draw them without replacement; other rows have the most
    probable tokens. `plan.stop` is asked about the first child. `read` receives the extended nodes only.
    Without `siblings`, for models that score chains only, there are none."""
    grower = Grower(ctx.roots, confidence=True)
    chain = Grower(ctx.roots)  # the nodes that are extended
    # (node of `grower`, the same node of `chain`)
    frontier = [(row, row) for row, depth in enumerate(plan.depth) if depth > 0]
    for level in range(max(plan.depth, default=0)):
        frontier = [pair for pair in frontier if plan.depth[grower.rows[pair[0]]] > level]
        if not frontier:
            break
        first, logits = read(chain.structure() if level else TokenTree.roots(ctx.roots))
        at, before = [node for node, _ in frontier], len(grower)
        logits = adjust(logits[[own - first for _, own in frontier]], ctx, grower, at)
        widths = _widths(logits, at, ctx, grower, sampled) if siblings else [1] * len(at)
        add_children(grower, at, widths, logits, ctx, sampled, _drawn_by_width)
        firsts: dict[int, int] = {}  # node -> its first child
        for child in range(before, len(grower)):
            firsts.setdefault(grower.parents[child], child)
        open_nodes = set(going_on(ctx, grower, before))
        kept = [index for index, node in enumerate(at) if firsts[node] in open_nodes]
        if plan.stop is not None:
            rows, leaves = [grower.rows[node] for node in at], [firsts[node] for node in at]
            stopped = plan.stop(Frontier(rows, grower.path_probs(leaves), logits))
            kept = [index for index in kept if not stopped[index]]
        if not kept or level + 1 == max(plan.depth):
            break
        leaves = [firsts[at[index]] for index in kept]
        tokens = grower.structure().tokens[leaves]
        own = chain.add_chosen([frontier[index][1] for index in kept], tokens)
        frontier = list(zip(leaves, own, strict=True))
    return grower.tree()


def _drawn_by_width(
    grower: Grower, at: Sequence[int], widths: Sequence[int], q: Tensor, noise: Noise
) -> list[int]:
    """Draw children without replacement, in one call per width: a call draws as often for each of its nodes
    as for the widest, and the random choices of a row must not depend on the rows beside it."""
    added: list[int] = []
    for width in sorted(set(widths)):
        picked = [index for index, each in enumerate(widths) if each == width]
        added += without_replacement(
            grower, [at[index] for index in picked], [width] * len(picked), q[picked], noise
        )
    return added


def _widths(
    logits: Tensor, at: Sequence[int], ctx: Context, grower: Grower, sampled: bool
) -> list[int]:  # (F, V), (F,) -> (F,)
    """Number of children of each node, at most as many as there are tokens to draw."""
    params = [ctx.sampling[grower.rows[node]] for node in at]
    drawn = [sampled and not each.greedy for each in params]
    probs = at_least_float32(logits).softmax(-1)
    if any(drawn):
        probs = torch.where(torch.tensor(drawn, device=probs.device)[:, None], warp(logits, params), probs)
    tops, possible = probs.amax(-1).tolist(), (probs > 0).sum(-1).tolist()
    found: list[int] = []
    for top, num, draws in zip(tops, possible, drawn, strict=True):
        chosen, width = next(widths for least, *widths in WIDTHS if top > least)
        found.append(min(width, num) if draws else chosen)
    return found
