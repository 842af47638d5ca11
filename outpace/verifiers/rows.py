"""Helpers of the verifiers of drawn tokens: draft probabilities, batch rows without drawn tokens, noise keys.

Letters: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.contracts import TargetProbs, Verdict
from outpace.core.device_copies import indices
from outpace.core.noise import Key, Noise
from outpace.core.tree import Forest, TokenTree
from outpace.verifiers.match import follow

Ends = dict[int, tuple[int, int]]  # row of the batch -> (deepest accepted node, bonus token)


def drawn_rows(tree: TokenTree, claim: Claim | None) -> list[int]:
    """The rows of the batch with at least one drawn token, ascending; empty without a claim."""
    if claim is None:
        return []
    assert isinstance(claim, Drawn)
    rows = tree.forest.rows
    return sorted({rows[node] for node, row in enumerate(claim.row) if row >= 0})


def with_matched(ends: Ends, tree: TokenTree, target_probs: TargetProbs, noise: Noise) -> Verdict:
    """The verdict on all rows: `ends` where given, match verification in the other rows."""
    missing = [row for row in range(tree.forest.num_rows) if row not in ends]
    if missing:
        matched = follow(tree, target_probs, noise, missing)
        ends = ends | dict(zip(missing, zip(matched.leaf, matched.bonus, strict=True), strict=True))
    pairs = [ends[row] for row in range(tree.forest.num_rows)]
    return Verdict([leaf for leaf, _ in pairs], [bonus for _, bonus in pairs])


def keys(nodes: Sequence[int], forest: Forest, use: str, draw: int = 0) -> Key:
    """Noise keys of a random choice per node; `draw` numbers the choices of one `use` at the same node."""
    rows, local, depths = forest.rows, forest.local, forest.depths
    return Key([rows[n] for n in nodes], [local[n] for n in nodes], [depths[n] for n in nodes], use, draw)


def smallest_mass(dtype: torch.dtype) -> float:
    """The smallest sum of a residual that is not rounding error of a sum over the vocabulary."""
    return 1e-14 if dtype == torch.float64 else 1e-7


Draw = tuple[int, int]  # (node, row of q it was drawn from)


class Drafted:
    """The tokens, draws and draft probabilities of a tree, read from its claim on demand."""

    def __init__(self, tree: TokenTree, claim: Drawn) -> None:
        self.forest, self.claim, self.tokens = tree.forest, claim, tree.token_list()
        self.draft_probs: dict[Draw, float] = {}  # draft probabilities computed so far
        self._draws_below: dict[int, list[Draw]] | None = None  # node -> draws of its children

    def draws_below(self, nodes: Sequence[int]) -> list[Draw]:
        """The draws of the children of these nodes, in drawing order; a child drawn twice is listed twice."""
        if self._draws_below is None:
            self._draws_below = {}
            for draw in self.claim.all_draws():
                self._draws_below.setdefault(self.forest.parents[draw[0]], []).append(draw)
        return [draw for node in nodes for draw in self._draws_below.get(node, ())]

    def draft_prob(self, draw: Draw) -> float:
        """The probability of this draw's token under the distribution it was drawn from."""
        if draw not in self.draft_probs:
            token, row = self.tokens[draw[0]], draw[1]
            q = self.claim.q[row]
            if q.is_cpu:
                self.draft_probs[draw] = float(
                    q[token] if self.claim.ids is None else q[self.claim.ids[row] == token].sum()
                )
                self.check(draw)
            else:
                self.read_draft_probs()
        return self.draft_probs[draw]

    def read_draft_probs(self) -> None:
        """Read the draft probabilities of all draws in one tensor operation."""
        draws, q, ids = self.claim.all_draws(), self.claim.q, self.claim.ids
        rows = indices([row for _, row in draws], q.device)
        tokens = indices([self.tokens[node] for node, _ in draws], q.device)
        probs = q[rows, tokens] if ids is None else (q[rows] * (ids[rows] == tokens[:, None])).sum(-1)
        self.draft_probs.update(zip(draws, probs.tolist(), strict=True))
        for draw in draws:
            self.check(draw)

    def check(self, draw: Draw) -> None:
        """AssertionError if the claim gives this draw's token probability 0, so that it cannot be true."""
        assert self.draft_probs[draw] > 0, (
            f"token {self.tokens[draw[0]]} is claimed to be drawn from a distribution that cannot give it"
        )

    def distribution(self, row: int, vocabulary: int) -> Tensor:  # (V,)
        """This row of q over the target's vocabulary, also where the claim lists top-k tokens only."""
        q = self.claim.q[row]
        if self.claim.ids is None:
            return q
        return q.new_zeros(vocabulary).index_add_(0, self.claim.ids[row], q)

    def remaining(self, row: int, rejected: Sequence[int]) -> float:
        """The probability that row `row` of q has left without the tokens of the nodes `rejected`; 1 for rows
        drawn with replacement."""
        if self.claim.replace[row] or not rejected:
            return 1.0
        mass = 1 - sum(self.draft_prob((other, row)) for other in rejected)
        if mass > 0.1:
            return mass
        # a small difference from 1 would be mostly rounding, so sum the remaining probabilities instead
        q, tokens = self.claim.q[row].clone(), [self.tokens[other] for other in rejected]
        if self.claim.ids is None:
            q[tokens] = 0
        else:
            q[torch.isin(self.claim.ids[row], torch.tensor(tokens, device=q.device))] = 0
        return max(float(q.sum()), torch.finfo(q.dtype).tiny)


def require_single_draws(claim: Drawn, verifier: str) -> None:
    """ValueError for a claim with several draws per node (`Drawn.draws`), on behalf of this verifier."""
    if claim.draws is not None:
        raise ValueError(f"{verifier} takes one draw per node: draft without merging equal draws")
