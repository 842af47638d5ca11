"""Which continuations are worth drafting while the target is at work: the probable ends of its verification.

A key is a node of the pending draft, the last that would be accepted, and a token that would follow it in
place of the draft's own. With matching, the target generates exactly that with the probability of the path to
the node times that of the token; it is estimated by the distribution after the target's first layers.

Letters: N nodes, V vocabulary size, B rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.tree import Forest, TokenTree
from outpace.sampling.topk import at_least_float32, top


def stem_of_keys(
    pending: TokenTree,
    logits: Tensor,  # (N, V) after the first layers, before sampling parameters, at the nodes of `pending`
    room: Sequence[int],  # (B,) tokens that may follow each root, without the bonus token
    stops: Sequence[Sequence[int]],  # (B,) stop tokens
    candidates: int,  # most probable tokens considered after each node
    budget: int,  # keys kept in each row, the most probable ones
) -> TokenTree:
    """The keys of all rows as leaves of one tree, below the parts of the pending draft that lead to them.
    None is a leaf after which its row has no room for a draft, or whose request ends with it."""
    forest, tokens, num_rows = pending.forest, pending.token_list(), pending.forest.num_rows
    log_probs = at_least_float32(logits).log_softmax(-1)
    best, best_tokens = (part.tolist() for part in top(log_probs, min(candidates, log_probs.shape[1])))
    path = _path_log_probs(pending, log_probs)
    found: list[list[tuple[float, int, int]]] = [[] for _ in range(num_rows)]  # (-log p, node, token)
    for node, row in enumerate(forest.rows):
        ended = node >= num_rows and tokens[node] in stops[row]
        if ended or forest.depths[node] + 1 >= room[row]:
            continue
        excluded = {tokens[child] for child in forest.children[node]}.union(stops[row])
        for log_prob, token in zip(best[node], best_tokens[node], strict=True):
            if token not in excluded:
                found[row].append((-path[node] - log_prob, node, token))
    keys = [key for row in found for key in sorted(row)[:budget]]
    above = {node for _, end, _ in keys for node in forest.path(end)}
    kept = [node for node in range(len(forest)) if node < num_rows or node in above]
    place = {node: index for index, node in enumerate(kept)} | {-1: -1}
    parents = [place[forest.parents[node]] for node in kept] + [place[node] for _, node, _ in keys]
    chosen = [tokens[node] for node in kept] + [token for _, _, token in keys]
    return TokenTree(torch.tensor(chosen, dtype=torch.int64), Forest.of(parents, num_rows))


def _path_log_probs(tree: TokenTree, log_probs: Tensor) -> list[float]:  # (N,)
    """The logarithm of the probability of the tokens on the path to each node."""
    num_rows, parents = tree.forest.num_rows, tree.forest.parents
    at = torch.tensor(parents[num_rows:], dtype=torch.int64, device=log_probs.device)
    own = log_probs[at, tree.tokens[num_rows:].to(log_probs.device)].tolist()
    path = [0.0] * num_rows
    for parent, log_prob in zip(parents[num_rows:], own, strict=True):
        path.append(path[parent] + log_prob)
    return path
