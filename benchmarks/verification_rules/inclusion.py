"""How likely single tokens are to be among draws without replacement.

Draws are exponential clocks, as in outpace/bench/measure/best_coupling.py, which has the integrals over time.

Letters: V vocabulary, S tokens, T points of time, K draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from outpace.bench.measure import best_coupling
from outpace.bench.measure.best_coupling import Draws


def inclusion_probabilities(draws: Draws, tokens: Sequence[int]) -> list[float]:  # distinct tokens
    """Probability of each of these tokens to be among `draws.count` draws without replacement."""
    q, picked, count = draws.q.double() / draws.q.double().sum(), list(tokens), draws.count
    own = q[picked]
    if count == 1:
        return own.tolist()
    if count >= int((q > 0).sum()):
        return (own > 0).double().tolist()
    others = q.clone()
    others[picked] = 0
    others = others[others > 0]
    if len(others) > best_coupling.MAX_EXACT_TOKENS:
        others = others.topk(best_coupling.MAX_EXACT_TOKENS).values
    times = best_coupling.ring_times(q)
    # tokens beyond `MAX_EXACT_TOKENS` share one Poisson clock that can ring repeatedly: this takes up a few
    # more of the draws, so the inclusion probability is slightly too low
    tail = (1 - own.sum() - others.sum()).clamp(min=0) * times
    rings = torch.arange(count, device=q.device)[:, None]
    common = [(tail.log() * rings - tail - torch.lgamma(rings.double() + 1)).exp().nan_to_num(0.0)[..., None]]
    if float(tail[-1]) == 0:
        common = []
    if len(others):
        common.append(_product(best_coupling.clocks(others, times, count)))
    own_clocks = best_coupling.clocks(own, times, count).split(1, -1)
    probabilities: list[float] = []
    for index, rate in enumerate(own):
        others_clocks = (clock for each, clock in enumerate(own_clocks) if each != index)
        fewer = reduce(best_coupling.sum_of_counts, [*common, *others_clocks]).sum(0)
        probabilities.append(min(1.0, 1 - float(best_coupling.ringing_first(rate[None], fewer, times)[0])))
    return probabilities


def _product(each: Tensor) -> Tensor:  # (K, T, S) -> (K, T, 1)
    """Product (`best_coupling.sum_of_counts`) of all S entries along the last dimension."""
    while (size := each.shape[-1]) > 1:
        paired = best_coupling.sum_of_counts(each[..., 0 : size - size % 2 : 2], each[..., 1::2])
        each = torch.cat([paired, each[..., size - size % 2 :]], -1)
    return each
