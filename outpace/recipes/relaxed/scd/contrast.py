"""The logits of contrastive decoding (Li et al. 2022, in the form of O'Brien and Lewis 2023).

Letters: M nodes, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outpace.sampling.topk import at_least_float32


class Contrast:
    """(1 + beta) times the target's logits less beta times the draft model's, of tokens whose probability is
    at least `alpha` times that of the target's most probable one; -inf of the others. Both logits have the
    changes of sampling parameters, as by penalties, but no temperature: so a token that is excluded is never
    the only plausible one. A token that only the draft model excludes (-inf) keeps the target's logit."""

    def __init__(self, beta: float, alpha: float) -> None:
        """ValueError for a negative or infinite `beta`, and for an `alpha` that is not from 0 to 1."""
        if not 0 <= beta < math.inf:
            raise ValueError(f"beta is {beta}: give a number from 0, the target's distribution")
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha is {alpha}: give a number from 0, every token, to 1, the likeliest one")
        self.beta, self.alpha = beta, alpha

    @property
    def is_exact(self) -> bool:
        """Whether the logits are the target's."""
        return not self.beta and not self.alpha

    def __call__(self, target: Tensor, draft: Tensor) -> Tensor:  # (M, V) each -> (M, V)
        target, draft = at_least_float32(target), at_least_float32(draft)
        contrasted = torch.where(draft == -math.inf, target, (1 + self.beta) * target - self.beta * draft)
        if not self.alpha:
            return contrasted
        least = target.amax(-1, keepdim=True) + math.log(self.alpha)
        return contrasted.masked_fill(target < least, -math.inf)
