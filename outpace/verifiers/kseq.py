"""K-sequential selection (Sun et al. 2023, SpecTr): one acceptance rule for k independent draws from one q.

Each draw x is accepted in turn with probability min(1, p(x) / (rho q(x))). A rho between 1 and k is valid if
no token is accepted with a higher probability than p(x); the smallest valid rho has the highest acceptance.
With a single draw rho is 1, which is token-level rejection. Draws from several distributions are tested one
distribution after the other, each against the residual of p that the earlier ones leave. Exact at any
temperature, but only for siblings drawn with replacement.

Letters: R nodes tested at once, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.contracts import Guarantee, Scores, TargetProbs, Verdict, Want
from outpace.core.noise import Noise
from outpace.core.tree import Forest, TokenTree
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import ACCEPT, RESIDUAL, residual
from outpace.verifiers.rho import any_accepted, least_rho
from outpace.verifiers.rows import Drafted, Draw, keys

# row of q, and the nodes drawn from it in drawing order; a node drawn n times is listed n times
Group = tuple[int, list[int]]


class KSequential:
    """Implementation of core.contracts.Verifier: k-sequential selection. `tolerance` is the most acceptance
    probability per node lost by stopping the search for the smallest valid rho early."""

    want = Want()
    accepts: tuple[type[Claim], ...] = (Drawn,)
    guarantee = Guarantee.EXACT

    def __init__(self, *, tolerance: float = 1e-4) -> None:
        if not 0 <= tolerance <= 1:
            raise ValueError(f"tolerance is {tolerance}; give a probability, 0 for the exact optimum")
        self._slack = tolerance
        self._match = Match()

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        claim, forest, tokens = tree.claim, tree.forest, tree.token_list()
        if claim is None:
            return self._match.verify(tree, target_probs, scores, noise)
        assert isinstance(claim, Drawn)
        draft = Drafted(tree, claim)
        # per row the nodes whose path is the accepted prefix; several if equal tokens were drawn
        levels = [[root] for root in range(forest.num_rows)]
        bonus = [0] * forest.num_rows
        walking = list(range(forest.num_rows))
        while walking:
            below = {
                row: [child for node in levels[row] for child in forest.children[node]] for row in walking
            }
            drawn = {row: draft.draws_below(levels[row]) for row in walking}
            tested = [row for row in walking if drawn[row]]
            free = [row for row in walking if not drawn[row]]
            next_tokens: dict[int, int] = {}
            if free:
                next_tokens.update(
                    zip(free, target_probs.choose([levels[row][0] for row in free], noise), strict=True)
                )
            if tested:
                nodes = [levels[row][0] for row in tested]
                groups = [_groups(drawn[row], claim) for row in tested]
                next_tokens.update(
                    zip(
                        tested,
                        self._test(nodes, groups, tokens, forest, claim, target_probs, noise),
                        strict=True,
                    )
                )
            goes_on = []
            for row in walking:
                # the token drawn from the residual may equal a rejected sibling's, which is then accepted
                level = [child for child in below[row] if tokens[child] == next_tokens[row]]
                if level:
                    levels[row] = level
                    goes_on.append(row)
                else:
                    bonus[row] = next_tokens[row]
            walking = goes_on
        return Verdict([level[0] for level in levels], bonus)

    def scale(
        self, p: Tensor, q: Tensor, num: Sequence[int]
    ) -> tuple[list[float], list[float]]:  # (R, V), (R, V), (R,)
        """Per node the smallest valid rho, and the factor f of its residual: after `num` rejected draws the
        residual is p - f min(p / rho, q)."""
        if max(num) == 1:
            return [1.0] * len(num), [1.0] * len(num)
        rho, factor = [], []
        for (at, overlap), k in zip(least_rho(p, q, num, self._slack), num, strict=True):
            one = overlap / at  # probability that one draw is accepted
            rho.append(at)
            factor.append(min(at, any_accepted(one, k) / one) if one > 0 else at)  # f > rho is rounding
        return rho, factor

    def _test(
        self,
        nodes: Sequence[int],
        groups: Sequence[list[Group]],
        tokens: list[int],
        forest: Forest,
        claim: Drawn,
        target_probs: TargetProbs,
        noise: Noise,
    ) -> list[int]:
        """The token after each of the R nodes: the first accepted draw, else one drawn from the residual."""
        p = target_probs.probs(nodes)
        p = p.to(torch.promote_types(p.dtype, claim.q.dtype))
        left = list(p.unbind())
        accepted = [-1] * len(nodes)
        tests: dict[int, int] = {}  # node -> number of times it was tested, so that each test has its own key
        for turn in range(max(len(draws) for draws in groups)):
            at = [m for m, draws in enumerate(groups) if accepted[m] < 0 and len(draws) > turn]
            if not at:
                break
            p_at = _stack([left[m] for m in at])
            q_at = _distributions(claim, [groups[m][turn][0] for m in at], p)
            siblings = [groups[m][turn][1] for m in at]
            rho, factor = self.scale(p_at, q_at, [len(drawn) for drawn in siblings])
            ratios = _ratios(p_at, q_at, siblings, tokens)
            refused = []
            for index, m in enumerate(at):
                for child, ratio in zip(siblings[index], ratios[index], strict=True):
                    before = tests.get(child, 0)
                    tests[child] = before + 1
                    if noise.flip((ratio / rho[index],), keys([child], forest, ACCEPT, before))[0]:
                        accepted[m] = tokens[child]
                        break
                else:
                    refused.append(index)
            if refused:
                scales = p_at.new_tensor([[rho[index], factor[index]] for index in refused])
                p_at, q_at = _rows(p_at, refused), _rows(q_at, refused)
                used = torch.minimum(p_at / scales[:, :1], q_at).mul_(scales[:, 1:])
                for index, row in zip(refused, residual(p_at, used, p_at).unbind(), strict=True):
                    left[at[index]] = row
        if ended := [m for m, token in enumerate(accepted) if token < 0]:
            key = keys([nodes[m] for m in ended], forest, RESIDUAL)
            for m, token in zip(
                ended, noise.choose(_stack([left[m] for m in ended]), key).tolist(), strict=True
            ):
                accepted[m] = token
        return accepted


def _groups(drawn: Sequence[Draw], claim: Drawn) -> list[Group]:
    """The draws grouped by the row of q they come from. ValueError for siblings drawn without replacement."""
    groups: dict[int, list[int]] = {}
    for child, row in drawn:
        groups.setdefault(row, []).append(child)
    for row, members in groups.items():
        if len(members) > 1 and not claim.replace[row]:
            raise ValueError(
                "k-sequential selection takes independent draws only: draft with replacement, or verify by "
                "Rejection"
            )
    return list(groups.items())


def _distributions(claim: Drawn, rows: Sequence[int], like: Tensor) -> Tensor:  # (R,) -> (R, V)
    q = _rows(claim.q, rows).to(like.dtype)
    if claim.ids is not None:
        return q.new_zeros(len(rows), like.shape[1]).scatter_add_(1, _rows(claim.ids, rows), q)
    return q


def _ratios(p: Tensor, q: Tensor, siblings: Sequence[list[int]], tokens: list[int]) -> list[list[float]]:
    """p / q of each sibling's token, one list per row; AssertionError where q is 0."""
    vocabulary = p.shape[1]
    flat_indices = [
        index * vocabulary + tokens[child] for index, drawn in enumerate(siblings) for child in drawn
    ]
    at = torch.tensor(flat_indices, device=p.device)
    flat: list[float] = (p.take(at) / q.take(at)).tolist()
    assert all(ratio < float("inf") for ratio in flat), (
        "a token is claimed to be drawn from a distribution that cannot give it"
    )
    ratios = iter(flat)
    return [[next(ratios) for _ in drawn] for drawn in siblings]


def _rows(distributions: Tensor, rows: Sequence[int]) -> Tensor:
    # slicing a single row gives a view, which saves copying V numbers
    return distributions[rows[0] : rows[0] + 1] if len(rows) == 1 else distributions[list(rows)]


def _stack(rows: Sequence[Tensor]) -> Tensor:
    return rows[0][None] if len(rows) == 1 else torch.stack(list(rows))
