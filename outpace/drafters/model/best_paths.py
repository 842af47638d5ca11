"""Draft trees from a beam search: the beams are merged into one tree, in which beams that begin with the same
tokens share the nodes for these tokens.

Chosen by probability, the tokens carry no claim and are verified by matching.

Letters: F nodes that are extended, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Plan
from outpace.core.grower import Grower
from outpace.core.tree import TokenTree
from outpace.drafters.model.grow import Read
from outpace.sampling.adjust import adjust
from outpace.sampling.topk import at_least_float32, top


class _Extended(NamedTuple):
    """A candidate of the beam search: a path of the last level, extended by one token."""

    score: float  # log of the draft probability of the whole path
    parent: int  # last node of the path that is extended
    token: int
    log_prob: float  # log of the token's own draft probability


def best_paths(
    ctx: Context,
    plan: Plan,
    read: Read,
    *,
    branching: Sequence[int],
    num_paths: int,
    width: int = 0,
    top_k: int = 0,
) -> TokenTree:
    """Build a tree of at most `num_paths` paths per row. At depth d each path is extended by its
    `branching[d]` most probable tokens, and the `width` best of a row's paths go on (0: all); of the longest
    the best `num_paths` stay. With `top_k` above 0 other tokens after a path than its `top_k` best have no
    probability. Draft probabilities are those at temperature 1. ValueError for numbers that leave no path."""
    if min((*branching, num_paths)) < 1 or min(width, top_k) < 0:
        raise ValueError(
            f"a search for {num_paths} paths that tries {tuple(branching)} tokens by depth, {width} paths "
            f"wide and with top_k {top_k}, finds none: use numbers of at least one"
        )
    grower = Grower(ctx.roots)
    scores, log_probs = [0.0] * len(ctx.slots), [0.0] * len(ctx.slots)  # by node
    ends = [[row] for row in range(len(ctx.slots))]  # last nodes of each row's paths
    ended = [list[int]() for _ in ctx.slots]  # last nodes of the paths with which each row's text ends
    for level, count in enumerate(branching):
        frontier = [node for row, nodes in enumerate(ends) if plan.depth[row] > level for node in nodes]
        if not frontier:
            break
        first, logits = read(grower.structure() if level else TokenTree.roots(ctx.roots))
        if frontier != list(range(first, first + len(logits))):  # a copy takes long over a large vocabulary
            logits = logits[[node - first for node in frontier]]
        logits = adjust(logits, ctx, grower, frontier)
        values, tokens = (each[:, :count].tolist() for each in _most_probable(logits, count, top_k))
        found: list[list[_Extended]] = [[] for _ in ctx.slots]
        for node, row_values, row_tokens in zip(frontier, values, tokens, strict=True):
            found[grower.rows[node]] += [
                _Extended(scores[node] + value, node, token, value)
                for value, token in zip(row_values, row_tokens, strict=True)
                if value > -torch.inf
            ]
        for row, new in enumerate(found):
            if new:
                is_last = level + 1 == min(plan.depth[row], len(branching))
                best = sorted(new, key=lambda each: -each.score)[: num_paths if is_last else width or None]
                tokens_of = torch.tensor([each.token for each in best])
                nodes = grower.add_chosen([each.parent for each in best], tokens_of)
                ends[row] = ctx.going_on(nodes, tokens_of, [row] * len(nodes))
                ended[row] += [node for node in nodes if node not in ends[row]]
                scores += [each.score for each in best]
                log_probs += [each.log_prob for each in best]
    for row, nodes in enumerate(ended):
        ends[row] = sorted(nodes + ends[row], key=lambda node: -scores[node])[:num_paths]
    return _only(grower.structure(), log_probs, ends)


def _most_probable(logits: Tensor, count: int, top_k: int) -> tuple[Tensor, Tensor]:
    """Logs of the probabilities of each row's most probable tokens (F, `count` or more if there are), and the
    tokens."""
    logits = at_least_float32(logits)
    if top_k:
        values, tokens = top(logits, min(top_k, logits.shape[-1]))
        return values.log_softmax(-1), tokens
    return top(logits.log_softmax(-1), min(count, logits.shape[-1]))


def _only(tree: TokenTree, log_probs: Sequence[float], ends: Sequence[Sequence[int]]) -> TokenTree:
    """The tree with the paths to these nodes alone."""
    kept = sorted({node for nodes in ends for end in nodes for node in tree.forest.path(end)})
    return replace(tree, confidence=torch.tensor(log_probs)).only(kept)
