"""What no rule can beat: the largest chance that an exact verifier keeps one of the tokens drafted below a
node.

Whatever couples the target's token y ~ p with the draft, y is a drafted token at most with chance

    min over sets H of tokens of  p(H) + 1 - Pr(every drafted token lies in H),

the dual of the transport problem whose gain is "y was drafted" (Hu et al. 2025): a y inside H is limited by p
alone, and one outside H needs a draft that is not wholly inside. A best H holds the tokens with the smallest
p / q, so one pass over the sorted vocabulary finds it. Draws without replacement are looked at as a race:
every token has an exponential clock of rate q, and the first to ring are the draft.

Letters: V vocabulary, S tokens in sorted order, T points of time of a race, K draws, W weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

MOST = 16384  # likeliest tokens a race looks at; beyond them the bound stays one, a little too high
AT_ONCE = 1 << 22  # numbers in a table of a race
SPACING = (
    0.3  # of a race's points, in the logarithm of time: the trapezoidal rule is then exact to about 1e-14
)


@dataclass(frozen=True, eq=False, slots=True)
class Draws:
    """Tokens drawn from one distribution below one node."""

    q: Tensor  # (V,) sums to 1
    count: int
    replace: bool  # independent of one another, or each without the earlier ones


def acceptance_bound(p: Tensor, draws: Sequence[Draws], chosen: Sequence[int] = ()) -> float:  # p: (V,)
    """Largest chance that a token of distribution p is among those drawn in these ways and those chosen
    beforehand.

    Exact for draws of one distribution; for several distributions a bound, not always the least.
    """
    return acceptance_bounds(p, draws, chosen, (1.0,))[0]


def acceptance_bounds(
    p: Tensor, draws: Sequence[Draws], chosen: Sequence[int], weights: Sequence[float]
) -> list[float]:
    """The same for several multiples of p: what is kept of a node's own mass, relative to the chance of
    drafting it."""
    p, given = p.double(), list(dict.fromkeys(chosen))
    distributions = [each.q.double() / each.q.double().sum() for each in draws]
    rate = sum(
        (each.count * distribution for each, distribution in zip(draws, distributions, strict=True)),
        torch.zeros_like(p),
    )
    rate[given] = 0
    tokens = rate.nonzero()[:, 0]
    tokens = tokens[(p[tokens] / rate[tokens]).argsort(stable=True)]
    # sets without all that was chosen never hold a whole draft, and the empty one is the best of them: chance
    # 1
    mass = p[given].sum() + torch.cat([p.new_zeros(1), p[tokens].cumsum(0)])  # (S + 1,)
    inside = torch.ones_like(mass)
    order = torch.cat([tokens.new_tensor(given), tokens])
    for each, distribution in zip(draws, distributions, strict=True):
        inside = inside * _all_inside(distribution[order], each.count, each.replace)[len(given) :]
    return [min(1.0, float((weight * mass + 1 - inside).min())) for weight in weights]


def drafted_chances(draws: Draws, tokens: Sequence[int]) -> list[float]:  # distinct tokens
    """How likely each of these tokens is to come up when drawn without replacement."""
    q, picked, count = draws.q.double() / draws.q.double().sum(), list(tokens), draws.count
    own = q[picked]
    if count == 1:
        return own.tolist()
    if count >= int((q > 0).sum()):
        return (own > 0).double().tolist()
    others = q.clone()
    others[picked] = 0
    others = others[others > 0]
    if len(others) > MOST:
        others = others.topk(MOST).values
    times = _times(q)
    # those left out may ring again and again: they crowd the others out a little more, so the chance is a bit
    # too low
    tail = (1 - own.sum() - others.sum()).clamp(min=0) * times
    rings = torch.arange(count, device=q.device)[:, None]
    common = [(tail.log() * rings - tail - torch.lgamma(rings.double() + 1)).exp().nan_to_num(0.0)[..., None]]
    if float(tail[-1]) == 0:
        common = []
    if len(others):
        common.append(_product(_clocks(others, times, count)))
    clocks = _clocks(own, times, count).split(1, -1)
    chances: list[float] = []
    for index, rate in enumerate(own):
        rest = reduce(
            _times_each_other, [*common, *(clock for each, clock in enumerate(clocks) if each != index)]
        )
        chances.append(min(1.0, 1 - float(_integral(rate[None], rest.sum(0), times)[0])))
    return chances


def _all_inside(q: Tensor, count: int, replace: bool) -> Tensor:  # (S,) -> (S + 1,)
    """The chance that all draws lie among the first 0, 1, ... S of these tokens, which are all there are."""
    nothing = q.new_zeros(1)
    before = torch.cat([nothing, q.cumsum(0)]).clamp(max=1)
    after = torch.cat([q.flip(0).cumsum(0).flip(0), nothing])
    if not replace:
        count = min(count, int((q > 0).sum()))  # these draws end when nothing is left
    if replace or count == 1:
        inside = before**count
    elif count == 2:
        inside = torch.cat([nothing, _pairs(q)])
    else:
        inside = torch.cat([nothing, _race(q, count)])
    return torch.where(after > 0, inside.clamp(0, 1), 1.0)


def _pairs(q: Tensor) -> Tensor:  # (S,) -> (S,)
    """The chance that both of two draws without replacement are among the first tokens."""
    # the likeliest token apart: 1 - q would cancel where it has nearly everything
    top = int(q.argmax())
    others = q.clone()
    others[top] = 0
    odds = others / (1 - others)
    found = q.cumsum(0) * odds.cumsum(0) - (others * odds).cumsum(0)
    found[top:] += q[top] * others.cumsum(0)[top:] / others.sum()
    return found


def _race(q: Tensor, count: int) -> Tensor:  # (S,) -> (S,)
    """The chance that `count` of the first tokens ring before any of those after them."""
    kept = torch.ones_like(q, dtype=torch.bool)
    if len(q) > MOST:
        kept = torch.zeros_like(kept).scatter_(0, q.topk(MOST).indices, True)
    rates = q[kept]
    after = rates.flip(0).cumsum(0).flip(0) - rates + q[~kept].sum()
    found, times = torch.zeros_like(rates), _times(q)
    for part in times.split(max(1, AT_ONCE // (len(rates) * count))):
        fewer = _prefix_products(_clocks(rates, part, count)).sum(0)
        found += _integral(after, fewer, part)
    # fewer tokens in a set can only lower the chance, which keeps the bound a bound
    return torch.cat([q.new_zeros(1), found])[kept.cumsum(0)]


def _times(like: Tensor) -> Tensor:  # (T,)
    """Points of time from long before the first to long after the last token that matters rings."""
    return torch.arange(-12, 33, SPACING, dtype=torch.float64, device=like.device).exp()


def _clocks(rates: Tensor, times: Tensor, count: int) -> Tensor:  # (S,), (T,) -> (K, T, S)
    """Per token the chances that it has rung 0, 1, ... `count` - 1 times: it rings once."""
    silent = (-times[:, None] * rates).exp()
    return torch.cat([silent[None], 1 - silent[None], silent.new_zeros(count - 2, *silent.shape)])


def _times_each_other(one: Tensor, other: Tensor) -> Tensor:  # (K, ...), (K, ...) -> (K, ...)
    """How many of both together: products of polynomials, cut off where nobody looks."""
    return torch.stack(
        [sum((one[i] * other[k - i] for i in range(1, k + 1)), one[0] * other[k]) for k in range(len(one))]
    )


def _prefix_products(each: Tensor) -> Tensor:  # (K, T, S) -> (K, T, S)
    """Products of the first 1, 2, ... S: neighbours first, so that the passes together cost no more than
    two."""
    if each.shape[-1] == 1:
        return each
    even, odd = each[..., 0::2], each[..., 1::2]
    found = torch.empty_like(each)
    found[..., 1::2] = _prefix_products(_times_each_other(even[..., : odd.shape[-1]], odd))
    found[..., 0] = even[..., 0]
    found[..., 2::2] = _times_each_other(found[..., 1::2][..., : even.shape[-1] - 1], even[..., 1:])
    return found


def _product(each: Tensor) -> Tensor:  # (K, T, S) -> (K, T, 1)
    """Product of all."""
    while (size := each.shape[-1]) > 1:
        paired = _times_each_other(each[..., 0 : size - size % 2 : 2], each[..., 1::2])
        each = torch.cat([paired, each[..., size - size % 2 :]], -1)
    return each


def _integral(rates: Tensor, fewer: Tensor, times: Tensor) -> Tensor:  # (S,), (T, S), (T,) -> (S,)
    """The chance that enough have rung when a clock of this rate rings first."""
    moment = times[:, None] * rates
    return SPACING * (moment * (-moment).exp() * (1 - fewer)).sum(0)
