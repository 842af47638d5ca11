"""What speculative contrastive decoding gives as its next token, computed from the two models' outputs after
a whole text.

Letters: V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outpace.core.contracts import ReferenceRequest, Target
from outpace.drafters.model.plain_drafts import logits_after
from outpace.sampling.warp import warp


class ContrastProbs:
    """Implementation of core.contracts.StatedProbs: the logits of `Contrast`, number by number, and the
    request's sampling parameters."""

    def __init__(self, beta: float, alpha: float, draft: Target) -> None:
        self._beta, self._alpha, self._draft = beta, alpha, draft

    @property
    def description(self) -> str:
        """Completes the sentence "the output is that of ...", for users."""
        return f"the target contrasted with the draft model, beta {self._beta:g} and alpha {self._alpha:g}"

    def next_probs(self, text: tuple[int, ...], request: ReferenceRequest) -> Tensor:
        """(V,) the distribution of the token after a text."""
        logits = request.adjusted(text, request.logits(text))
        draft = request.adjusted(text, logits_after(self._draft, text)).tolist()
        target, shares = logits.tolist(), logits.softmax(-1).tolist()
        least = self._alpha * max(shares)
        contrasted = [
            -math.inf if share < least else own if other == -math.inf else own + self._beta * (own - other)
            for own, other, share in zip(target, draft, shares, strict=True)
        ]
        return warp(torch.tensor([contrasted], dtype=torch.float64), [request.sampling])[0]
