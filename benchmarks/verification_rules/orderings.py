"""Proven inequalities between verification rules, evaluated at one node from p and q.

Below a single node the probability that a child is accepted has a closed form, over the random draft too, so
every proven inequality must hold at every node, up to rounding. For whole trees there is no such form, and on
a given drafted tree either of two rules can accept more.

Letters: V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.bench.measure.best_coupling import Draws, acceptance_bound
from outpace.verifiers.rho import any_accepted, least_rho

SHARE = "k-sequential >= 1 - (1 - 1/k)^k of the best"


def recursive(p: Tensor, q: Tensor, count: int) -> float:  # (V,), (V,)
    """Probability that recursive rejection accepts one of `count` draws from q with replacement."""
    refused = 1.0
    for _ in range(count):
        overlap = float(torch.minimum(p, q).sum())
        refused *= max(0.0, 1 - overlap)
        left = (p - q).clamp_(min=0)
        if refused == 0 or float(left.sum()) == 0:
            return 1.0
        p = left / left.sum()
    return 1 - refused


def k_sequential(p: Tensor, q: Tensor, count: int) -> float:  # (V,), (V,)
    """Probability that k-sequential selection with the smallest valid rho accepts one of `count` draws."""
    scale, overlap = least_rho(p[None], q[None], [count])[0]
    return any_accepted(overlap / scale, count)


def greedy_last(p: Tensor, q: Tensor, count: int) -> tuple[float, float]:  # (V,), (V,)
    """Acceptance probability by rejection of greedy-last drafts (the `count - 1` most probable tokens of q
    and one draw from the rest), and its upper bound."""
    top = q.topk(min(count - 1, len(q))).indices
    rest = q.index_fill(0, top, 0.0)
    outside = p.index_fill(0, top, 0.0)
    draws = [Draws(rest / rest.sum(), 1, True)] if float(rest.sum()) > 0 else []
    overlap = float(torch.minimum(outside, draws[0].q).sum()) if draws else 0.0
    return float(p[top].sum()) + overlap, acceptance_bound(p, draws, top.tolist())


def margins(p: Tensor, q: Tensor, count: int) -> dict[str, float]:  # (V,), (V,)
    """Inequality -> left side minus right side at a node with `count` candidates; negative beyond rounding
    contradicts the theorem. For an equality: minus the absolute difference."""
    p, q = p.double() / p.double().sum(), q.double() / q.double().sum()
    with_, without = (acceptance_bound(p, [Draws(q, count, replace)]) for replace in (True, False))
    tested, selected = recursive(p, q, count), k_sequential(p, q, count)
    chosen, bound = greedy_last(p, q, count)
    return {
        "best with replacement >= recursive rejection": with_ - tested,
        "best with replacement >= k-sequential": with_ - selected,
        SHARE: selected - (1 - (1 - 1 / count) ** count) * with_,
        "best without replacement >= best with": without - with_,
        "rejection = best, greedy-last": -abs(chosen - bound),
        "more candidates >= one": tested - float(torch.minimum(p, q).sum()),
    }
