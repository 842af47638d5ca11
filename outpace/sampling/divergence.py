"""Differentiable distances of a drafter's distribution from the target's or from a label, from logits.

`outpace.training.losses` has more of them and says what holds for all. They are here because drafters that
learn while they draft need these.

Letters: ... positions, M selected positions, V tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.sampling.topk import at_least_float32


def cross_entropy(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:  # (..., V), (...) int64, (...)
    """-log q of the label."""
    chosen = selected(logits, mask).log_softmax(-1)
    return -mean(chosen.gather(-1, labels[mask.bool()].unsqueeze(-1)).squeeze(-1))


def forward_kl(logits: Tensor, target_logits: Tensor, mask: Tensor) -> Tensor:
    """KL(p || q), infinite where the drafter excludes a token that the target allows."""
    return mean(token_forward_kl(logits, target_logits, mask))


def reverse_kl(logits: Tensor, target_logits: Tensor, mask: Tensor) -> Tensor:
    """KL(q || p), infinite where the target excludes a token that the drafter allows."""
    log_p, log_q = log_probs(logits, target_logits, mask)
    return mean(kl(log_q, log_p))


def jensen_shannon(logits: Tensor, target_logits: Tensor, mask: Tensor, *, beta: float = 0.5) -> Tensor:
    """beta × KL(p || m) + (1 - beta) × KL(q || m) with m = beta × p + (1 - beta) × q, 0 < beta < 1: the
    generalised divergence of DistillSpec (Zhou et al. 2024), at most ln 2. Near 0 and divided by beta it is
    forward KL, near 1 and divided by 1 - beta reverse KL."""
    log_p, log_q = log_probs(logits, target_logits, mask)
    p, q = log_p.exp(), log_q.exp()
    mixture = beta * p + (1 - beta) * q
    # where p and q are 0, the logarithm of m would have an infinite gradient
    log_m = mixture.clamp_min(torch.finfo(p.dtype).tiny).log()
    own = beta * expected(p, log_p) + (1 - beta) * expected(q, log_q)
    return mean(own - expected(mixture, log_m))


def token_forward_kl(logits: Tensor, target_logits: Tensor, mask: Tensor) -> Tensor:  # (M,)
    """KL(p || q) at each selected position."""
    return kl(*log_probs(logits, target_logits, mask))


def selected(values: Tensor, mask: Tensor) -> Tensor:  # (..., V), (...) -> (M, V)
    """The values at the selected positions, at least float32."""
    # selected, not multiplied by 0: a NaN of another position would stay NaN
    return at_least_float32(values[mask.bool()])


def log_probs(logits: Tensor, target_logits: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """log p and log q, (M, V) each."""
    log_p = selected(target_logits.detach(), mask).log_softmax(-1)
    return log_p, selected(logits, mask).log_softmax(-1)


def mean(values: Tensor) -> Tensor:  # (M,) -> ()
    """The mean; 0 of no values."""
    return values.sum() / max(1, len(values))


def expected(weights: Tensor, logs: Tensor) -> Tensor:  # (M, V), (M, V) -> (M,)
    """The sum of weights × logs, where 0 × -inf is 0, in the gradient too."""
    return (weights * logs.masked_fill(weights == 0, 0.0)).sum(-1)


def kl(log_a: Tensor, log_b: Tensor) -> Tensor:  # (M, V), (M, V) -> (M,)
    """KL(a || b) at each position."""
    a = log_a.exp()
    return expected(a, log_a) - expected(a, log_b)
