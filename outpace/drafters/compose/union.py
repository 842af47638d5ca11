"""Several drafters at once, their trees merged below the same roots.

Letters: M distributions, K options in each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace as replaced

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn, DrawnBeside
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Plan
from outpace.core.noise import Key, Noise
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.compose.combined import Combined


class UnionDrafter(Combined):
    """Implementation of core.contracts.Drafter that gives each of `drafters` the same plan and merges their
    trees."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        if not drafters:
            raise ValueError("give at least one drafter")
        super().__init__(*drafters)
        self._drafters = tuple(drafters)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        drafts = [self._drafters[0].propose(ctx, plan)]
        tree = drafts[0].tree
        for index, drafter in enumerate(self._drafters[1:], 1):
            drafts.append(drafter.propose(replaced(ctx, noise=independent_noise(ctx.noise, index)), plan))
            tree = merged_trees(tree, drafts[-1].tree)
        return Draft(tree, sum(draft.forwards for draft in drafts), sum(draft.seconds for draft in drafts))


def merged_trees(one: TokenTree, other: TokenTree, at: Sequence[int] | None = None) -> TokenTree:
    """One tree with the nodes of two trees; `at`: the node of `one` that is the root of each row of `other`,
    None: its own roots. Equal token sequences become one node, which keeps the draws of both trees.
    ValueError if the tokens there differ."""
    rows, tokens = one.forest.num_rows, other.tokens.to(one.tokens.device)
    roots = list(range(rows) if at is None else at)
    if len(roots) != other.forest.num_rows or not torch.equal(one.tokens[roots], tokens[: len(roots)]):
        raise ValueError("only trees of the same roots can be merged")
    pairs = zip(one.forest.parents[rows:], one.tokens[rows:].tolist(), strict=True)
    node_of = {pair: node for node, pair in enumerate(pairs, rows)}  # (parent, token) -> node
    parents, nodes, added = list(one.forest.parents), roots, list[int]()
    for node, token in enumerate(tokens[len(roots) :].tolist(), len(roots)):
        pair = nodes[other.forest.parents[node]], token
        if pair not in node_of:
            node_of[pair] = len(parents)
            parents.append(pair[0])
            added.append(node)
        nodes.append(node_of[pair])
    claim = _both_claims(one, other, nodes, len(parents))
    return TokenTree(torch.cat([one.tokens, tokens[added]]), Forest.of(parents, rows), None, claim)


def _both_claims(one: TokenTree, other: TokenTree, nodes: Sequence[int], size: int) -> Claim | None:
    """The recorded distributions q of both trees as one claim, for a merged tree of `size` nodes in which
    node i of `other` is `nodes[i]`; None if no token was drawn in either, TypeError if a claim is not
    `Drawn`, or has distributions after all nodes."""
    row, draws = [-1] * size, list[tuple[int, int]]()
    replace, q, ids = list[bool](), list[Tensor](), list[Tensor]()
    for tree, node_of in ((one, range(len(one))), (other, nodes)):
        claim = tree.claim
        if isinstance(claim, DrawnBeside) or not isinstance(claim, Drawn | None):
            raise TypeError(f"trees that claim {type(claim).__name__} cannot be merged")
        if claim is None:
            continue
        for node, index in claim.all_draws():
            draws.append((node_of[node], index + len(replace)))
            if row[node_of[node]] < 0:
                row[node_of[node]] = index + len(replace)
        replace += claim.replace
        q.append(claim.q)
        if claim.ids is not None:
            ids.append(claim.ids)
    if not q:
        return None
    if ids and len(ids) < len(q):
        raise TypeError(
            "a distribution over the whole vocabulary and one over listed tokens cannot be merged"
        )
    repeated = len(draws) > sum(index >= 0 for index in row)
    return Drawn(
        q=torch.cat(q),
        row=tuple(row),
        replace=tuple(replace),
        ids=torch.cat(ids) if ids else None,
        draws=tuple(draws) if repeated else None,
    )


class Rekeyed:
    """Implementation of core.noise.Noise that passes every call to another noise source, with the key
    transformed by `rekey`."""

    def __init__(self, noise: Noise, rekey: Callable[[Key], Key]) -> None:
        self._noise, self._rekey = noise, rekey

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        return self._noise.choose(probs, self._rekey(key))

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        return self._noise.flip(accept, self._rekey(key))

    def draw(self, probs: Tensor, k: int, key: Key, *, replace: bool) -> Tensor:  # (M, K) -> (M, k)
        return self._noise.draw(probs, k, self._rekey(key), replace=replace)


def independent_noise(noise: Noise, index: int) -> Noise:
    """The noise source for part number `index` of several that draw in the same step: its keys differ from
    the other parts', so that no two share a draw."""
    return Rekeyed(noise, lambda key: Key(key.rows, key.nodes, key.depths, key.use, key.draw + (index << 16)))
