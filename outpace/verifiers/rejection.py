"""Recursive rejection: test the drawn siblings of a node in turn, each against what the refused ones left of
p.

A drawn sibling x is accepted with probability min(1, r(x) / q(x)), where r is p at first and the normalised
positive part of r - q after each refusal (Leviathan et al. 2023 for one sibling; Yang et al. 2024 for draws
without replacement; Miao et al. 2024 for several drafters). Chosen siblings come last, by matching what is
left. Exact at any temperature, provided every claim is true and siblings are tested in an order that does not
depend on which tokens they are.

Letters: M of N nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.contracts import Guarantee, Scores, TargetProbs, Verdict, Want
from outpace.core.noise import TARGET, Key, Noise
from outpace.core.tree import Forest, TokenTree
from outpace.verifiers.match import Match
from outpace.verifiers.rows import Drafted, Draw, drawn_rows, keys, smallest_mass, with_matched

ACCEPT, RESIDUAL, ORDER = "accept", "residual", "order"
INFINITE = float("inf")


class Rejection:
    """core.contracts.Verifier by recursive rejection; `random_order` tests independent siblings in random
    order."""

    want = Want()
    accepts: tuple[type[Claim], ...] = (Drawn,)
    guarantee = Guarantee.EXACT

    def __init__(self, *, random_order: bool = False) -> None:
        self._random_order = random_order
        self._match = Match()

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        claim, forest = tree.claim, tree.forest
        if claim is None:
            return self._match.verify(tree, target_probs, scores, noise)
        assert isinstance(claim, Drawn)
        if (
            forest.is_chain
            and claim.ids is None
            and claim.draws is None
            and -1 not in claim.row[forest.num_rows :]
        ):
            return _chains(tree, claim, target_probs, noise)
        # rows in which truncation left nothing to draw are matched, as they would be without the others
        rows = drawn_rows(tree, claim)
        draft = Drafted(tree, claim)
        return with_matched(
            {row: self._walk(row, draft, target_probs, noise) for row in rows}, tree, target_probs, noise
        )

    def _walk(self, root: int, draft: Drafted, target_probs: TargetProbs, noise: Noise) -> tuple[int, int]:
        children, tokens = draft.forest.children, draft.tokens
        level = [root]  # the nodes spelt by the accepted tokens: several where two draws gave the same token
        while True:
            node = level[0]
            below = [child for each in level for child in children[each]]
            drawn = draft.draws_below(level)
            token = (
                self._test(node, drawn, draft, target_probs, noise)
                if drawn
                else target_probs.choose([node], noise)[0]
            )
            level = [child for child in below if tokens[child] == token]
            if not level:
                return node, token

    def _test(
        self, node: int, drawn: list[Draw], draft: Drafted, target_probs: TargetProbs, noise: Noise
    ) -> int:
        """The token after this node: the first sibling accepted, else one drawn from what they left of p."""
        p = left = target_probs.probs([node])[0]
        total = 1.0  # sum of what is left, which is not normalised on the way
        if self._random_order and len(drawn) > 1:
            drawn = _shuffled(drawn, node, draft.forest, draft.claim, noise)
        refused: dict[int, list[int]] = {}  # row of q -> siblings drawn from it and refused
        tests: dict[int, int] = {}  # node -> how often it was tested before
        for child, row in drawn:
            token, earlier = draft.tokens[child], refused.setdefault(row, [])
            scale = total / draft.remaining(row, earlier)  # of q, so that it compares with what is left
            ratio = float(left[token]) / (draft.belief((child, row)) * scale)
            before_this = tests.get(child, 0)
            tests[child] = before_this + 1
            if noise.flip([ratio], keys([child], draft.forest, ACCEPT, before_this))[0]:
                return token
            earlier.append(child)
            # refused tokens need not be taken out of q: a refusal leaves nothing of its token
            left = torch.sub(left, draft.distribution(row, len(p)), alpha=scale).clamp_(min=0)
            before, total = total, float(left.sum())
            if (
                total <= smallest_mass(p.dtype) * before
            ):  # a refusal proves that mass was left: this is rounding
                left, total = p, 1.0
        return int(noise.choose((left / total)[None], keys([node], draft.forest, RESIDUAL)))


def residual(p: Tensor, q: Tensor, otherwise: Tensor) -> Tensor:  # (M, V) each -> (M, V)
    """What is left of p after q's share was refused, rows sum to 1; `otherwise` where rounding left
    nothing."""
    left = (p - q).clamp_(min=0)
    mass = left.sum(-1, keepdim=True)
    # a refusal proves that mass was left: too little is the work of rounding
    enough = mass > smallest_mass(p.dtype)
    if left.device.type == "cpu" and bool(enough.all()):  # elsewhere asking would wait for the device
        return left.div_(mass)
    return torch.where(enough, left / mass, otherwise)


def _shuffled(drawn: list[Draw], node: int, forest: Forest, claim: Drawn, noise: Noise) -> list[Draw]:
    """A uniformly random order, blind to the tokens (siblings drawn without replacement keep theirs)."""
    if not all(claim.replace[row] for _, row in drawn):
        raise ValueError("siblings drawn without replacement are tested in the order they were drawn")
    left, order = list(drawn), []
    while len(left) > 1:
        equal = torch.full((1, len(left)), 1 / len(left), dtype=torch.float64)
        key = Key([forest.rows[node]], [forest.local[node]], [forest.depths[node]], ORDER, len(order))
        order.append(left.pop(int(noise.choose(equal, key))))
    return order + left


def _chains(tree: TokenTree, claim: Drawn, target_probs: TargetProbs, noise: Noise) -> Verdict:
    """The same rule for chains: all ratios at once, a walk on the host, one draw for all rows that end
    alike."""
    forest, rows = tree.forest, tree.forest.num_rows
    p, children = target_probs.probs(None), forest.children
    ratios: list[float] = []
    if len(tree) > rows:
        drafted = tree.tokens[rows:].to(p.device)
        p_token, q_token = _at(p, forest.parents[rows:], drafted), _at(claim.q, claim.row[rows:], drafted)
        ratios = (p_token / q_token).tolist()
        assert all(ratio < INFINITE for ratio in ratios), (
            "a token is claimed to be drawn, but its distribution cannot give it"
        )
    leaf: list[int] = []
    ended: list[int] = []
    refused: list[int] = []  # nodes whose child was refused
    for node in range(rows):
        while (below := children[node]) and noise.flip(
            (ratios[below[0] - rows],), keys([below[0]], forest, ACCEPT)
        )[0]:
            node = below[0]
        leaf.append(node)
        (refused if below else ended).append(node)
    bonus: dict[int, int] = {}
    if ended:
        bonus.update(
            zip(ended, noise.choose(_rows(p, ended), keys(ended, forest, TARGET)).tolist(), strict=True)
        )
    if refused:
        p_left = _rows(p, refused)
        q_left = _rows(claim.q, [claim.row[children[node][0]] for node in refused])
        left = residual(p_left, q_left, p_left)
        bonus.update(zip(refused, noise.choose(left, keys(refused, forest, RESIDUAL)).tolist(), strict=True))
    return Verdict(leaf, [bonus[node] for node in leaf])


def _at(
    distributions: Tensor, rows: Sequence[int], tokens: Tensor
) -> Tensor:  # (N, V), M of them, (M,) -> (M,)
    """What these rows say of a token each."""
    first, last = rows[0], rows[-1]
    if tuple(rows) == tuple(range(first, last + 1)):
        return distributions[first : last + 1].gather(1, tokens[:, None])[:, 0]
    return distributions[list(rows), tokens]  # rows that are no view would be copied whole


def _rows(distributions: Tensor, rows: Sequence[int]) -> Tensor:  # (N, V), M of them -> (M, V)
    """These rows; neighbours as a view, which is several times faster than looking them up."""
    first, count = rows[0], len(rows)
    if rows[-1] - first == count - 1 and (count < 3 or tuple(rows) == tuple(range(first, first + count))):
        return distributions[first : first + count]
    return distributions[list(rows)]
