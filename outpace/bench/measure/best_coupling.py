"""Upper bound of acceptance at one node: the largest probability that an exact verifier accepts a child.

For any coupling of the target's token y ~ p with the draft, the probability that y is among the drafted
tokens is at most

    min over sets H of tokens of  p(H) + 1 - Pr(every drafted token lies in H),

the dual of the optimal transport problem with gain 1 for "y was drafted" (Hu et al. 2025): y inside H has
probability p(H) at most, and y outside H requires a draft that is not a subset of H. An optimal H consists of
the tokens with the smallest p / q, so one pass over the sorted vocabulary finds it. Draws without replacement
are modelled as exponential clocks: each token rings once, after an exponential time of rate q, and the first
tokens to ring are the draft.

Letters: V vocabulary, S tokens in sorted order, T points of time, K draws, W weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_EXACT_TOKENS = (
    16384  # number of most probable tokens treated exactly; with more the bound is slightly too high
)
AT_ONCE = 1 << 22  # numbers in the largest temporary tensor of `_race`
SPACING = (
    0.3  # step of the integrals over time, in log time: the trapezoidal rule is then exact to about 1e-14
)


@dataclass(frozen=True, eq=False, slots=True)
class Draws:
    """`count` children of one node drawn from one distribution."""

    q: Tensor  # (V,) sums to 1
    count: int
    replace: bool  # True: drawn with replacement; False: without


def acceptance_bound(p: Tensor, draws: Sequence[Draws], chosen: Sequence[int] = ()) -> float:  # p: (V,)
    """Upper bound of the probability that a token sampled from p is drafted, under the best coupling: by one
    of `draws`, or as one of the `chosen` token ids.

    Attained (the optimum) for draws from one distribution; for several distributions not always the smallest
    bound.
    """
    return acceptance_bounds(p, draws, chosen, (1.0,))[0]


def acceptance_bounds(
    p: Tensor, draws: Sequence[Draws], chosen: Sequence[int], weights: Sequence[float]
) -> list[float]:
    """(W,) `acceptance_bound` with p multiplied by each of `weights`. For a node deeper in the tree the
    weight is the target's probability of the node's path divided by the probability of drafting it."""
    p, given = p.double(), list(dict.fromkeys(chosen))
    distributions = [each.q.double() / each.q.double().sum() for each in draws]
    rate = sum(
        (each.count * distribution for each, distribution in zip(draws, distributions, strict=True)),
        torch.zeros_like(p),
    )
    rate[given] = 0
    tokens = rate.nonzero()[:, 0]
    tokens = tokens[(p[tokens] / rate[tokens]).argsort(stable=True)]
    # a set H that lacks a chosen token never contains the whole draft: of these the empty set is best, with
    # the bound 1, which the final `min` covers
    mass = p[given].sum() + torch.cat([p.new_zeros(1), p[tokens].cumsum(0)])  # (S + 1,)
    inside = torch.ones_like(mass)
    order = torch.cat([tokens.new_tensor(given), tokens])
    for each, distribution in zip(draws, distributions, strict=True):
        inside = inside * _all_inside(distribution[order], each.count, each.replace)[len(given) :]
    return [min(1.0, float((weight * mass + 1 - inside).min())) for weight in weights]


def _all_inside(q: Tensor, count: int, replace: bool) -> Tensor:  # (S,) -> (S + 1,)
    """Entry s: the probability that all `count` draws are among the first s of the S tokens of `q`."""
    nothing = q.new_zeros(1)
    before = torch.cat([nothing, q.cumsum(0)]).clamp(max=1)
    after = torch.cat([q.flip(0).cumsum(0).flip(0), nothing])
    if not replace:
        count = min(count, int((q > 0).sum()))  # at most one draw per token of positive probability
    if replace or count == 1:
        inside = before**count
    elif count == 2:
        inside = torch.cat([nothing, _pairs(q)])
    else:
        inside = torch.cat([nothing, _race(q, count)])
    return torch.where(after > 0, inside.clamp(0, 1), 1.0)


def _pairs(q: Tensor) -> Tensor:  # (S,) -> (S,)
    """Entry s: the probability that two draws without replacement are both among the first s + 1 tokens."""
    # the most probable token is treated apart: 1 - q would lose all digits for q close to 1
    top = int(q.argmax())
    others = q.clone()
    others[top] = 0
    odds = others / (1 - others)
    found = q.cumsum(0) * odds.cumsum(0) - (others * odds).cumsum(0)
    found[top:] += q[top] * others.cumsum(0)[top:] / others.sum()
    return found


def _race(q: Tensor, count: int) -> Tensor:  # (S,) -> (S,)
    """Entry s: the probability that `count` of the first s + 1 tokens ring before any of the later tokens,
    which is that all `count` draws without replacement are among the first s + 1."""
    kept = torch.ones_like(q, dtype=torch.bool)
    if len(q) > MAX_EXACT_TOKENS:
        kept = torch.zeros_like(kept).scatter_(0, q.topk(MAX_EXACT_TOKENS).indices, True)
    rates = q[kept]
    after = rates.flip(0).cumsum(0).flip(0) - rates + q[~kept].sum()
    found, times = torch.zeros_like(rates), ring_times(q)
    for part in times.split(max(1, AT_ONCE // (len(rates) * count))):
        fewer = _prefix_products(clocks(rates, part, count)).sum(0)
        found += ringing_first(after, fewer, part)
    # without the tokens beyond `MAX_EXACT_TOKENS` the probability can only be too low, so the result is still
    # an upper bound of acceptance
    return torch.cat([q.new_zeros(1), found])[kept.cumsum(0)]


def ring_times(like: Tensor) -> Tensor:  # (T,)
    """Times at which the integrals are evaluated, e^-12 to e^33: equidistant in log time."""
    return torch.arange(-12, 33, SPACING, dtype=torch.float64, device=like.device).exp()


def clocks(rates: Tensor, times: Tensor, count: int) -> Tensor:  # (S,), (T,) -> (K, T, S)
    """Per time and token the probabilities of having rung 0, 1, ... `count` - 1 times; a token rings once at
    most, so all from 2 on are 0."""
    silent = (-times[:, None] * rates).exp()
    return torch.cat([silent[None], 1 - silent[None], silent.new_zeros(count - 2, *silent.shape)])


def sum_of_counts(one: Tensor, other: Tensor) -> Tensor:  # (K, ...), (K, ...) -> (K, ...)
    """Distribution of the sum of two counts: products of polynomials, truncated to K coefficients."""
    return torch.stack(
        [sum((one[i] * other[k - i] for i in range(1, k + 1)), one[0] * other[k]) for k in range(len(one))]
    )


def _prefix_products(each: Tensor) -> Tensor:  # (K, T, S) -> (K, T, S)
    """Sums (`sum_of_counts`) of the first 1, 2, ... S entries along the last dimension: a parallel
    scan over pairs of neighbours, about 2 S products in all."""
    if each.shape[-1] == 1:
        return each
    even, odd = each[..., 0::2], each[..., 1::2]
    found = torch.empty_like(each)
    found[..., 1::2] = _prefix_products(sum_of_counts(even[..., : odd.shape[-1]], odd))
    found[..., 0] = even[..., 0]
    found[..., 2::2] = sum_of_counts(found[..., 1::2][..., : even.shape[-1] - 1], even[..., 1:])
    return found


def ringing_first(rates: Tensor, fewer: Tensor, times: Tensor) -> Tensor:  # (S,), (T, S), (T,) -> (S,)
    """Per rate the probability that enough other clocks ring before one of this rate does; `fewer` is the
    probability that fewer than enough have rung at each time."""
    moment = times[:, None] * rates
    return SPACING * (moment * (-moment).exp() * (1 - fewer)).sum(0)
