"""Recursive rejection: tests the drawn children of a node in turn, each against the residual of p.

A drawn child x is accepted with probability min(1, r(x) / q(x)), where the residual r is p at first and the
normalised positive part of r - q after each rejection (Leviathan et al. 2023 for one child; Yang et al. 2024
for draws without replacement; Miao et al. 2024 for several drafters). If all are rejected, a token is sampled
from the last residual; a child that was chosen, not drawn, is accepted if it is that token. Exact at any
temperature, provided every claim is true and children are tested in an order that does not depend on their
tokens.

Letters: M selected nodes of N, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.contracts import Guarantee, Scores, TargetProbs, Verdict, Want
from outpace.core.device_copies import indices
from outpace.core.noise import TARGET, Key, Noise
from outpace.core.tree import Forest, TokenTree
from outpace.verifiers.match import Match
from outpace.verifiers.rows import Drafted, Draw, drawn_rows, keys, smallest_mass, with_matched

ACCEPT, RESIDUAL, ORDER = "accept", "residual", "order"
INFINITE = float("inf")


class Rejection:
    """Implementation of core.contracts.Verifier: recursive rejection. `random_order`: test siblings in random
    order; ValueError if they were drawn without replacement."""

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
        # a row without drawn tokens (top-k or top-p left none) is matched, whatever the other rows drafted
        rows = drawn_rows(tree, claim)
        draft = Drafted(tree, claim)
        return with_matched(
            {row: self._walk(row, draft, target_probs, noise) for row in rows}, tree, target_probs, noise
        )

    def _walk(self, root: int, draft: Drafted, target_probs: TargetProbs, noise: Noise) -> tuple[int, int]:
        children, tokens = draft.forest.children, draft.tokens
        level = [root]  # the nodes whose path is the accepted prefix; several if equal tokens were drawn
        while True:
            node = level[0]
            below = [child for reached in level for child in children[reached]]
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
        """The token after `node`: the first accepted draw, else a token drawn from the residual of p."""
        p = left = target_probs.probs([node])[0]
        if self._random_order and len(drawn) > 1:
            drawn = _shuffled(drawn, node, draft.forest, draft.claim, noise)
        rejected: dict[int, list[int]] = {}  # row of q -> siblings drawn from it and rejected
        tests: dict[int, int] = {}  # node -> number of times it was tested, so that each test has its own key
        tokens = [draft.tokens[child] for child, _ in drawn]
        # of the residual `left`, which is not normalised between tests: its sum, and its value at the token
        total, (left_at_token,) = 1.0, _numbers(left[tokens[0]])
        for index, (child, row) in enumerate(drawn):
            token, earlier = tokens[index], rejected.setdefault(row, [])
            # factor of q that brings it to the scale of the residual
            scale = total / draft.remaining(row, earlier)
            ratio = left_at_token / (draft.draft_prob((child, row)) * scale)
            before_this = tests.get(child, 0)
            tests[child] = before_this + 1
            if noise.flip([ratio], keys([child], draft.forest, ACCEPT, before_this))[0]:
                return token
            earlier.append(child)
            # rejected tokens need not be removed from q: their residual is 0 already
            left = torch.sub(left, draft.distribution(row, len(p)), alpha=scale).clamp_(min=0)
            following = tokens[index + 1 : index + 2]
            before, (total, *at_next) = total, _numbers(left.sum(), *(left[each] for each in following))
            # after a rejection the residual is positive: 0 is rounding, so continue with p
            if total <= smallest_mass(p.dtype) * before:
                left, total, at_next = p, 1.0, _numbers(*(p[each] for each in following))
            left_at_token = sum(at_next)
        return int(noise.choose((left / total)[None], keys([node], draft.forest, RESIDUAL)))


def _numbers(*values: Tensor) -> list[float]:
    """These numbers of one dtype; those of an accelerator are read together, as every read waits for it."""
    if all(each.is_cpu for each in values):
        return [each.item() for each in values]
    return torch.stack(values).tolist()


def residual(p: Tensor, q: Tensor, otherwise: Tensor) -> Tensor:  # (M, V) each -> (M, V)
    """The residual after a rejection: the positive part of p - q, each row normalised to 1. Rows whose sum is
    only rounding are taken from `otherwise`."""
    left = (p - q).clamp_(min=0)
    mass = left.sum(-1, keepdim=True)
    # after a rejection the residual is positive in exact arithmetic: a smaller sum is rounding
    enough = mass > smallest_mass(p.dtype)
    if left.device.type == "cpu" and bool(enough.all()):  # `bool` would synchronise a GPU
        return left.div_(mass)
    return torch.where(enough, left / mass, otherwise)


def _shuffled(drawn: list[Draw], node: int, forest: Forest, claim: Drawn, noise: Noise) -> list[Draw]:
    """The draws below `node` in uniformly random order. ValueError for siblings drawn without replacement,
    which have to be tested in drawing order."""
    if not all(claim.replace[row] for _, row in drawn):
        raise ValueError("siblings drawn without replacement are tested in the order they were drawn")
    left, order = list(drawn), []
    while len(left) > 1:
        equal = torch.full((1, len(left)), 1 / len(left), dtype=torch.float64)
        key = Key([forest.rows[node]], [forest.local[node]], [forest.depths[node]], ORDER, len(order))
        order.append(left.pop(int(noise.choose(equal, key))))
    return order + left


def _chains(tree: TokenTree, claim: Drawn, target_probs: TargetProbs, noise: Noise) -> Verdict:
    """`Rejection.verify` for chains of drawn tokens: all ratios p / q in one tensor operation, the tests on
    the CPU, bonus tokens in two batches (end of the chain reached, token rejected)."""
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
    rejected: list[int] = []  # nodes whose child was rejected
    for node in range(rows):
        while (below := children[node]) and noise.flip(
            (ratios[below[0] - rows],), keys([below[0]], forest, ACCEPT)
        )[0]:
            node = below[0]
        leaf.append(node)
        (rejected if below else ended).append(node)
    bonus: dict[int, int] = {}
    if ended:
        bonus.update(
            zip(ended, noise.choose(_rows(p, ended), keys(ended, forest, TARGET)).tolist(), strict=True)
        )
    if rejected:
        p_left = _rows(p, rejected)
        q_left = _rows(claim.q, [claim.row[children[node][0]] for node in rejected])
        left = residual(p_left, q_left, p_left)
        bonus.update(
            zip(rejected, noise.choose(left, keys(rejected, forest, RESIDUAL)).tolist(), strict=True)
        )
    return Verdict(leaf, [bonus[node] for node in leaf])


def _at(
    distributions: Tensor, rows: Sequence[int], tokens: Tensor
) -> Tensor:  # (N, V), M of them, (M,) -> (M,)
    """The probability of one token in each of these rows."""
    first, last = rows[0], rows[-1]
    if tuple(rows) == tuple(range(first, last + 1)):
        return distributions[first : last + 1].gather(1, tokens[:, None])[:, 0]
    # selecting the rows first would copy M * V numbers
    return distributions[indices(rows, distributions.device), tokens]


def _rows(distributions: Tensor, rows: Sequence[int]) -> Tensor:  # (N, V), M of them -> (M, V)
    """These rows: a view if they are consecutive, several times faster than the copy by index otherwise."""
    first, count = rows[0], len(rows)
    if rows[-1] - first == count - 1 and (count < 3 or tuple(rows) == tuple(range(first, first + count))):
        return distributions[first : first + count]
    return distributions[indices(rows, distributions.device)]
