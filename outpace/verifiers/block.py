"""Block verification (Sun et al. 2024): accepts or rejects a drafted chain as a whole, not token by token.

From the root down, each node gets the weight w = min(1, w of its parent * p / q), p and q being the target's
and the draft's probability of its token. Nodes are then tested from the end of the chain upwards until one is
accepted: the last node with probability w; an inner node with probability S / (S + 1 - w), where S is the sum
over the vocabulary of the positive part of w p - q for the next token; the root with probability 1. The bonus
token is drawn from p after the last node, else from the normalised positive part. Some tokens that
token-level rejection would reject are accepted, because probable tokens around them compensate; no exact rule
for a single chain accepts more tokens in expectation. Exact at any temperature, provided every claim is true.

Letters: M drafted nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.contracts import Guarantee, Scores, TargetProbs, Verdict, Want
from outpace.core.noise import Noise
from outpace.core.tree import TokenTree
from outpace.verifiers.rejection import ACCEPT, RESIDUAL
from outpace.verifiers.rows import Ends, drawn_rows, keys, require_single_draws, smallest_mass, with_matched

NEVER = 1e-30  # weights below it are 0 for any uniform number; its inverse is finite in float32


class Block:
    """Implementation of core.contracts.Verifier: block verification of chains; ValueError for other trees."""

    want = Want()
    accepts: tuple[type[Claim], ...] = (Drawn,)
    guarantee = Guarantee.EXACT

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        if not tree.forest.is_chain:
            raise ValueError(
                "Block verifies chains and was given a tree: draft a chain, or use verifier=Traversal()"
            )
        rows = drawn_rows(tree, tree.claim)
        return with_matched(
            self._ends(rows, tree, target_probs, noise) if rows else {}, tree, target_probs, noise
        )

    def _ends(self, rows: Sequence[int], tree: TokenTree, target_probs: TargetProbs, noise: Noise) -> Ends:
        forest, claim = tree.forest, tree.claim
        assert isinstance(claim, Drawn)
        require_single_draws(claim, "block verification")
        drafted = [node for node in range(forest.num_rows, len(tree)) if forest.rows[node] in rows]
        above = [forest.parents[node] for node in drafted]
        p = target_probs.probs(above)
        q = draft_distributions(drafted, tree, claim, p)
        weights = node_weights(drafted, above, tree, p, q)
        ends: Ends = {}
        last = [forest.nodes[row][-1] for row in rows]
        accepted = noise.flip([weights[node] for node in last], keys(last, forest, ACCEPT))
        fully_accepted = [node for node, is_accepted in zip(last, accepted, strict=True) if is_accepted]
        if fully_accepted:
            pairs = zip(fully_accepted, target_probs.choose(fully_accepted, noise), strict=True)
            ends.update((forest.rows[node], (node, token)) for node, token in pairs)
        if len(fully_accepted) < len(rows):
            rest = [node for node, is_accepted in zip(last, accepted, strict=True) if not is_accepted]
            ends.update(self._shorter(rest, above, weights, tree, p, q, noise))
        return ends

    def _shorter(
        self,
        last: Sequence[int],  # last nodes of the chains that were not accepted to their end
        # (M,) parents of the drafted nodes: row m of p and q is the next token after them
        above: Sequence[int],
        weights: dict[int, float],
        tree: TokenTree,
        p: Tensor,  # (M, V)
        q: Tensor,  # (M, V)
        noise: Noise,
    ) -> Ends:
        """Row -> (node, token): the deepest accepted node above the end of the row's chain, and the bonus
        token drawn from the residual at that node."""
        forest = tree.forest
        rows = {forest.rows[node] for node in last}
        if len(rows) < len({forest.rows[node] for node in above}):
            picked = [index for index, node in enumerate(above) if forest.rows[node] in rows]
            above, p, q = [above[index] for index in picked], p[picked], q[picked]
        residual = self._residual(p, q, p.new_tensor([weights[node] for node in above]))
        totals = residual.sum(-1).tolist()
        sums = {node: total * weights[node] for node, total in zip(above, totals, strict=True)}
        leaf = [self._climb(node, weights, sums, tree, noise) for node in last]
        index_of = {node: index for index, node in enumerate(above)}
        ends = [index_of[node] for node in leaf]
        few = [totals[end] <= smallest_mass(p.dtype) for end in ends]
        distributions = residual[ends]
        if any(few):  # after a rejection the residual is positive: a sum of 0 is rounding, so draw from p
            distributions = torch.where(torch.tensor(few, device=p.device)[:, None], p[ends], distributions)
        tokens = noise.choose(distributions, keys(leaf, forest, RESIDUAL)).tolist()
        return {forest.rows[node]: (node, token) for node, token in zip(leaf, tokens, strict=True)}

    def _climb(
        self, last: int, weights: dict[int, float], sums: dict[int, float], tree: TokenTree, noise: Noise
    ) -> int:
        """The deepest accepted node above `last`; the root if no other is. One random choice per node."""
        forest = tree.forest
        node = forest.parents[last]
        while node >= forest.num_rows:
            if noise.flip(
                [self._acceptance_probability(weights[node], sums[node])], keys([node], forest, ACCEPT)
            )[0]:
                break
            node = forest.parents[node]
        return node

    def _residual(self, p: Tensor, q: Tensor, weights: Tensor) -> Tensor:  # (M, V), (M, V), (M,) -> (M, V)
        """Residual at each node: the positive part of p - q / w for the next token, not normalised."""
        # a weight of 0 has no inverse; any finite value will do, as the sum is multiplied by the weight again
        return torch.addcmul(p, q, 1 / weights.clamp(min=NEVER)[:, None], value=-1).clamp_(min=0)

    def _acceptance_probability(self, weight: float, residual_sum: float) -> float:
        return acceptance_probability(weight, residual_sum)


def acceptance_probability(weight: float, residual_sum: float) -> float:
    """Probability of accepting a node of weight `weight` after its child was rejected; `residual_sum` is the
    sum of the positive part of w p - q."""
    total = residual_sum + (1 - weight)
    # p = q and w = 1: only rounding can have rejected the child
    return residual_sum / total if total > 0 else 1.0


def node_weights(
    drafted: Sequence[int], above: Sequence[int], tree: TokenTree, p: Tensor, q: Tensor
) -> dict[int, float]:
    """Node -> weight w, for the roots and the M drafted nodes; `p` and `q` (M, V) are the distributions that
    the target and the draft have at each drafted node's parent. AssertionError if q of a token is 0."""
    tokens = tree.tokens[list(drafted), None].to(p.device)
    q_token = q.gather(1, tokens).double()
    assert bool((q_token > 0).all()), "a token is claimed to be drawn from a distribution that cannot give it"
    ratios = (p.gather(1, tokens).double() / q_token)[:, 0].tolist()
    weights = dict.fromkeys(range(tree.forest.num_rows), 1.0)
    for node, parent, ratio in zip(drafted, above, ratios, strict=True):
        weights[node] = min(1.0, weights[parent] * ratio)
    return weights


def draft_distributions(drafted: Sequence[int], tree: TokenTree, claim: Drawn, p: Tensor) -> Tensor:  # (M, V)
    """The distribution each of the M drafted nodes was drawn from; one-hot for tokens chosen, not drawn."""
    rows = [claim.row[node] for node in drafted]
    if claim.ids is not None:
        q = p.new_zeros(p.shape).scatter_add_(1, claim.ids[rows], claim.q[rows].to(p.dtype))
    else:
        q = claim.q if rows == list(range(len(claim.q))) else claim.q[rows]
        q = q.to(p.dtype)
    chosen = [index for index, row in enumerate(rows) if row < 0]
    if chosen:
        q = q.clone()
        q[chosen] = 0
        q[chosen, tree.tokens[[drafted[index] for index in chosen]].to(q.device)] = 1
    return q
