"""Context-aware dynamic draft trees (Li et al. 2024, EAGLE-2): the most probable paths of a beam search.

Each level extends the most probable paths; at the end the best of all tokens met are kept. Chosen by
probability, they carry no claim and are verified by matching.

Letters: F nodes that are extended, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from outpace.core.context import Context
from outpace.core.contracts import Plan
from outpace.core.grower import Grower
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.model.grow import Read
from outpace.sampling.adjust import adjust
from outpace.sampling.topk import at_least_float32, top

EAGLE2_DEPTH = 6  # levels of EAGLE-2's trees


class Candidate(NamedTuple):
    """A token that may become a node of the tree."""

    score: float  # log of the draft probability of its path
    depth: int
    parent: int  # node of the expanded tree
    token: int
    log_prob: float  # log of its own draft probability


def dynamic_tree(ctx: Context, plan: Plan, read: Read, *, width: int, num_nodes: int) -> TokenTree:
    """Build a tree of at most `num_nodes` draft tokens per row. At each level the `width` best paths of a row
    are extended by their `width` most probable tokens; all these tokens are candidates, of which the best
    paths stay. With `plan.size` fewer are extended and stay. `read` receives the extended paths only. Draft
    probabilities are those at temperature 1."""
    grower = Grower(ctx.roots)  # the paths that are extended
    candidates: list[list[Candidate]] = [[] for _ in ctx.slots]
    scores = [0.0] * len(ctx.slots)  # by node of `grower`
    expanded: dict[int, Candidate] = {}
    frontier: list[int] = list(range(len(ctx.slots)))
    levels = 0
    for level in range(max(plan.depth, default=0)):
        frontier = [node for node in frontier if plan.depth[grower.rows[node]] > level]
        if not frontier:
            break
        first, logits = read(grower.structure() if level else TokenTree.roots(ctx.roots))
        logits = adjust(logits[[node - first for node in frontier]], ctx, grower, frontier)
        log_probs = at_least_float32(logits).log_softmax(-1)
        values, tokens = (each.tolist() for each in top(log_probs, min(width, log_probs.shape[-1])))
        found: list[list[Candidate]] = [[] for _ in ctx.slots]
        for node, row_values, row_tokens in zip(frontier, values, tokens, strict=True):
            found[grower.rows[node]] += [
                Candidate(scores[node] + value, level + 1, node, token, value)
                for value, token in zip(row_values, row_tokens, strict=True)
                if value > -torch.inf
            ]
        frontier, levels = [], level + 1
        for row, new in enumerate(found):
            candidates[row] = sorted((*candidates[row], *new), key=lambda one: (-one.score, one.depth))
        best_of = [
            sorted(new, key=lambda each: -each.score)[:width] if levels < depth else []
            for new, depth in zip(found, plan.depth, strict=True)
        ]
        if plan.size is not None and any(best_of):
            counts = plan.size.extend(_scores(candidates), _scores(best_of), levels)
            best_of = [best[:count] for best, count in zip(best_of, counts, strict=True)]
        for best in best_of:
            if best:
                nodes = grower.add_chosen(
                    [each.parent for each in best], torch.tensor([each.token for each in best])
                )
                scores += [each.score for each in best]
                expanded.update(zip(nodes, best, strict=True))
                frontier += nodes
    kept = [num_nodes] * len(ctx.slots)
    if plan.size is not None and levels:
        kept = [min(pair) for pair in zip(kept, plan.size.keep(_scores(candidates), levels), strict=True)]
    best_candidates = [each[:count] for each, count in zip(candidates, kept, strict=True)]
    return _reranked(ctx, best_candidates, expanded)


def eagle2_tree(ctx: Context, plan: Plan, read: Read) -> TokenTree:
    """A dynamic tree of EAGLE-2's size for targets of 7B parameters: at most 59 draft tokens per row on
    `EAGLE2_DEPTH` levels, 10 paths extended per level."""
    return dynamic_tree(ctx, plan.within([EAGLE2_DEPTH] * len(plan.depth)), read, width=10, num_nodes=59)


def _scores(candidates: Sequence[Sequence[Candidate]]) -> list[list[float]]:
    return [[each.score for each in row] for row in candidates]


def _reranked(ctx: Context, kept: Sequence[Sequence[Candidate]], expanded: dict[int, Candidate]) -> TokenTree:
    """The tree of each row's best candidates. A path is never more probable than its beginning, and of equal
    ones the shorter stays, so the parents of kept candidates are kept too."""
    node_of = {candidate: node for node, candidate in expanded.items()}
    parents, tokens = [-1] * len(ctx.slots), ctx.roots.tolist()
    log_probs, place = [0.0] * len(ctx.slots), {row: row for row in range(len(ctx.slots))}
    for candidate in sorted((one for each in kept for one in each), key=lambda one: one.depth):
        if (node := node_of.get(candidate)) is not None:
            place[node] = len(tokens)
        parents.append(place[candidate.parent])
        tokens.append(candidate.token)
        log_probs.append(candidate.log_prob)
    forest = Forest.of(parents, len(ctx.slots))
    return TokenTree(torch.tensor(tokens), forest, torch.tensor(log_probs))
