"""Losses that train a drafter against a target.

Every function compares the drafter's logits or features with the target's at positions of any shape and
returns the mean over the positions that `mask` selects, 0 if it selects none. Other positions take no part:
their gradient is 0 even where their values are NaN or infinite. p and q are the softmax of the target's and
the drafter's logits. Computed in float32 (float64 for float64); no gradient reaches the target.

With a draft vocabulary, both have logits for its tokens only, so p is the target's distribution given that
the token is in the draft vocabulary. Acceptance also depends on the target's total probability of the draft
vocabulary: the functions that need it take it as `mass`.

Memory: each of p, q, their logarithms and the gradient takes 4 bytes per selected position and token, 0.5 GiB
for 1,024 positions and 128k tokens, and a divergence holds about six of them until its backward pass. With
large vocabularies call a loss for parts of the positions, one backward pass each, weighted by their number.

Letters: ... positions, M selected positions, V tokens (of the draft vocabulary, where there is one), D size
of a feature.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from outpace.sampling.divergence import (
    cross_entropy,
    expected,
    forward_kl,
    jensen_shannon,
    kl,
    log_probs,
    mean,
    reverse_kl,
    selected,
    token_forward_kl,
)

__all__ = [
    "acceptance",
    "cross_entropy",
    "forward_kl",
    "jensen_shannon",
    "lk_hybrid",
    "mean_square",
    "negative_log_acceptance",
    "reverse_kl",
    "smooth_l1",
    "soft_cross_entropy",
    "token_forward_kl",
    "top_k_cross_entropy",
    "total_variation",
    "total_variation_plus",
]


def soft_cross_entropy(logits: Tensor, target_logits: Tensor, mask: Tensor) -> Tensor:
    """-sum p log q: forward KL plus the entropy of p, which the drafter does not change."""
    log_p, log_q = log_probs(logits, target_logits, mask)
    return -mean(expected(log_p.exp(), log_q))


def top_k_cross_entropy(logits: Tensor, target_logits: Tensor, mask: Tensor, *, k: int = 10) -> Tensor:
    """-sum p log q over the k most probable tokens of p, whose probabilities are not normalised again (HASS,
    Zhang et al. 2025)."""
    log_p, log_q = log_probs(logits, target_logits, mask)
    best, tokens = log_p.topk(min(k, log_p.shape[-1]), -1)
    return -mean(expected(best.exp(), log_q.gather(-1, tokens)))


def total_variation(
    logits: Tensor, target_logits: Tensor, mask: Tensor, *, mass: Tensor | None = None
) -> Tensor:  # mass: (...)
    """Half the sum of |p - q|, the probability that a token drawn from q is rejected."""
    return mean(_rejected(*log_probs(logits, target_logits, mask), _mass(mass, mask)))


def total_variation_plus(logits: Tensor, target_logits: Tensor, mask: Tensor) -> Tensor:
    """TVD++ (Goel et al. 2024): the policy gradient form of the total variation, with rewards 1 for tokens
    with p > q and 0 for others, shifted by their mean and divided by their standard deviation.

    Only its gradient is meaningful: the total variation's gradient divided by the standard deviation. The sum
    over the vocabulary is exact; mean and standard deviation are over the selected positions, with tokens
    weighted by q. The paper does not state these weights."""
    log_p, log_q = log_probs(logits, target_logits, mask)
    with torch.no_grad():
        q = log_q.exp()
        rewards = (log_p > log_q).to(q.dtype)
        rewards -= mean((q * rewards).sum(-1))
        deviation = mean((q * rewards.square()).sum(-1)).sqrt()
        # if all rewards are equal they are 0 here, and so is the deviation
        weights = q * rewards / deviation.clamp_min(torch.finfo(q.dtype).tiny)
    return -mean(expected(weights, log_q))


def negative_log_acceptance(
    logits: Tensor, target_logits: Tensor, mask: Tensor, *, mass: Tensor | None = None
) -> Tensor:  # mass: (...)
    """-log of the probability that a token drawn from q is accepted: the LK loss "alpha" (arXiv:2602.23881).
    Unlike the total variation's, its gradient does not vanish where q has little overlap with p."""
    log_p, log_q = log_probs(logits, target_logits, mask)
    share = _mass(mass, mask)
    if share is not None:
        log_p = log_p + share.log()
    # in logarithms, since q may be 0 in float32 wherever p is not
    return -mean(torch.minimum(log_p, log_q).logsumexp(-1))


def lk_hybrid(
    logits: Tensor, target_logits: Tensor, mask: Tensor, *, mass: Tensor | None = None, decay: float = 3.0
) -> Tensor:  # mass: (...)
    """The LK loss "lambda" (arXiv:2602.23881): w × forward KL + (1 - w) × total variation, with
    w = exp(-decay × acceptance), so that KL dominates until drafts are accepted.

    The acceptance is the mean over the selected positions, without gradient. Published implementations differ
    here: some weigh each position by its own acceptance, and early ones let the gradient through."""
    log_p, log_q = log_probs(logits, target_logits, mask)
    rejected = mean(_rejected(log_p, log_q, _mass(mass, mask)))
    weight = torch.exp(-decay * (1 - rejected.detach()))
    return weight * mean(kl(log_p, log_q)) + (1 - weight) * rejected


def acceptance(
    logits: Tensor, target_logits: Tensor, mask: Tensor, draft_ids: Tensor | None = None
) -> Tensor:  # (..., K), (..., V), (...), (K,) -> (M,)
    """The probability that a token drawn from q is accepted, sum min(p, q), at each selected position. The
    target's logits are those of the whole vocabulary; `draft_ids`: the tokens of the drafter's logits."""
    p, q = selected(target_logits, mask).softmax(-1), selected(logits, mask).softmax(-1)
    return torch.minimum(p if draft_ids is None else p[..., draft_ids], q).sum(-1)


def smooth_l1(features: Tensor, target_features: Tensor, mask: Tensor) -> Tensor:  # (..., D), (..., D), (...)
    """Smooth L1 distance of features (EAGLE, Li et al. 2024), averaged over their D numbers."""
    target = selected(target_features, mask).detach()
    return mean(functional.smooth_l1_loss(selected(features, mask), target, reduction="none").mean(-1))


def mean_square(features: Tensor, target_features: Tensor, mask: Tensor) -> Tensor:  # (..., D) twice, (...)
    """Mean square of the differences between features (Chimera, Zeng et al. 2024)."""
    target = selected(target_features, mask).detach()
    return mean((selected(features, mask) - target).square().mean(-1))


def _mass(mass: Tensor | None, mask: Tensor) -> Tensor | None:  # (...) -> (M, 1)
    return None if mass is None else selected(mass, mask).detach().unsqueeze(-1)


def _rejected(log_p: Tensor, log_q: Tensor, mass: Tensor | None) -> Tensor:  # -> (M,)
    """1 minus the sum of min(p, q), without the rounding error of a difference of nearly equal numbers."""
    p = log_p.exp() if mass is None else log_p.exp() * mass
    return (log_q.exp() - p).clamp_min(0).sum(-1)
