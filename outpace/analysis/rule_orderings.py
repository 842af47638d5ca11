"""What is proven about the rules, checked at one node: chances that a drafted token is kept, exact over the
draws too.

Over whole trees such chances have no short form, and one drafted tree can favour either of two rules. Below
one node the draws sum out, so here every ordering that is a theorem has to hold at every node, but for
rounding.

Letters: V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.analysis.acceptance_bound import Draws, acceptance_bound
from outpace.verifiers.rho import any_accepted, least_rho

SHARE = "k-sequential >= 1 - (1 - 1/k)^k of the best"


def recursive(p: Tensor, q: Tensor, count: int) -> float:  # (V,), (V,)
    """Chance that recursive rejection keeps one of so many independent draws from q."""
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
    """The same for k-sequential selection at its smallest valid scale."""
    scale, overlap = least_rho(p[None], q[None], [count])[0]
    return any_accepted(overlap / scale, count)


def greedy_last(p: Tensor, q: Tensor, count: int) -> tuple[float, float]:  # (V,), (V,)
    """What is kept of the likeliest `count - 1` tokens and one draw from the rest, and the most that could
    be."""
    top = q.topk(min(count - 1, len(q))).indices
    rest = q.index_fill(0, top, 0.0)
    outside = p.index_fill(0, top, 0.0)
    draws = [Draws(rest / rest.sum(), 1, True)] if float(rest.sum()) > 0 else []
    overlap = float(torch.minimum(outside, draws[0].q).sum()) if draws else 0.0
    return float(p[top].sum()) + overlap, acceptance_bound(p, draws, top.tolist())


def margins(p: Tensor, q: Tensor, count: int) -> dict[str, float]:  # (V,), (V,)
    """By how much each ordering holds below a node with so many candidates; negative where it does not."""
    p, q = p.double() / p.double().sum(), q.double() / q.double().sum()
    with_, without = (acceptance_bound(p, [Draws(q, count, replace)]) for replace in (True, False))
    tested, selected = recursive(p, q, count), k_sequential(p, q, count)
    chosen, most = greedy_last(p, q, count)
    return {
        "best with replacement >= recursive rejection": with_ - tested,
        "best with replacement >= k-sequential": with_ - selected,
        SHARE: selected - (1 - (1 - 1 / count) ** count) * with_,
        "best without replacement >= best with": without - with_,
        "rejection = best, greedy-last": -abs(chosen - most),
        "more candidates >= one": tested - float(torch.minimum(p, q).sum()),
    }
