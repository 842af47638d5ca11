"""Best-first draft trees (DDTree, 2026): the most probable paths, where the distribution at a level is known
before any token of the levels above it.

A heap holds the next candidates by the probability of their paths. Taking one adds it to the tree and puts
two into the heap: the next most probable token after its parent, and the most probable one after itself.
The tokens are chosen, not drawn, so no draft distribution is recorded for them: each is accepted where it
equals the target's own sample (verification by matching).

Letters: B rows, k levels, K tokens of the draft vocabulary, W tokens tried after each node.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Plan
from outpace.core.device_copies import on_host
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.grow import Read
from outpace.sampling.topk import at_least_float32, top


@runtime_checkable
class ReadLevels(Protocol):
    """A `Read` whose logits after a node depend on its root and its depth alone."""

    def next_levels(self, roots: TokenTree) -> tuple[Tensor, Tensor | None]:
        """The logits (B, k, K) of the next k tokens after each root, from one forward, and the token of each
        logit (K,), None for all tokens in their order."""
        ...


def best_first(ctx: Context, plan: Plan, read: Read, *, num_nodes: int) -> TokenTree:
    """Build a tree of at most `num_nodes` draft tokens per row: those of the most probable paths, no longer
    than the plan's depth. `read` is a `ReadLevels`. Draft probabilities are those at temperature 1."""
    if any(each.changes_logits for each in ctx.sampling):
        # by the path to a node: this search finds the same tree, with more candidates
        return dynamic_tree(ctx, plan, read, width=num_nodes, num_nodes=num_nodes)
    of_levels: object = read
    assert isinstance(of_levels, ReadLevels)
    logits, ids = of_levels.next_levels(TokenTree.roots(ctx.roots))
    found, columns = top(at_least_float32(logits).log_softmax(-1), min(num_nodes, logits.shape[-1]))
    tokens, values = on_host(columns if ids is None else ids[columns], found)
    parents, texts, log_probs = [-1] * len(ctx.slots), ctx.roots.tolist(), [0.0] * len(ctx.slots)
    for row, depth in enumerate(plan.depth):
        ends = () if ctx.stops is None else ctx.stops[row]
        paths = _most_probable(tokens[row, :depth].tolist(), values[row, :depth].tolist(), num_nodes, ends)
        first = len(parents)
        for parent, token, log_prob in paths:
            parents.append(row if parent < 0 else first + parent)
            texts.append(token)
            log_probs.append(log_prob)
    forest = Forest.of(parents, len(ctx.slots))
    return TokenTree(torch.tensor(texts), forest, torch.tensor(log_probs))


def _most_probable(
    tokens: Sequence[Sequence[int]],  # (k, W) by level, the most probable ones first
    log_probs: Sequence[Sequence[float]],  # (k, W)
    num_nodes: int,
    ends: Container[int],  # tokens with which the text ends
) -> list[tuple[int, int, float]]:
    """The nodes of a row's tree, each after its parent: the parent's index in this list, -1 for the root; the
    token; the log of its draft probability."""
    nodes, number = list[tuple[int, int, float]](), count()
    # (-log of the path's probability, depth, order of insertion, parent, rank of the token); of equally
    # probable paths the shorter one is first
    heap: list[tuple[float, int, int, int, int]] = []

    def put(above: float, depth: int, parent: int, rank: int) -> None:
        if depth < len(tokens) and rank < len(tokens[depth]) and log_probs[depth][rank] > -torch.inf:
            heappush(heap, (above - log_probs[depth][rank], depth, next(number), parent, rank))

    put(0.0, 0, -1, 0)
    while heap and len(nodes) < num_nodes:
        score, depth, _, parent, rank = heappop(heap)
        token, log_prob = tokens[depth][rank], log_probs[depth][rank]
        nodes.append((parent, token, log_prob))
        put(score + log_prob, depth, parent, rank + 1)
        if token not in ends:
            put(score, depth + 1, len(nodes) - 1, 0)
    return nodes
