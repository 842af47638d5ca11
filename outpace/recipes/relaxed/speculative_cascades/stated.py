"""What a cascade gives as its next token, computed from the two models' outputs after a whole text.

Letters: V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.core.contracts import ReferenceRequest, Target
from outpace.drafters.model.plain_drafts import logits_after
from outpace.recipes.relaxed.speculative_cascades.rules import Rule


class CascadeProbs:
    """Implementation of core.contracts.StatedProbs: the rules of `Deferral`, number by number."""

    def __init__(self, rule: Rule, alpha: float, draft: Target) -> None:
        self._rule, self._alpha, self._draft = rule, alpha, draft

    @property
    def description(self) -> str:
        """Completes the sentence "the output is that of ...", for users."""
        return f"a cascade of the draft model and the target by {self._rule} with alpha {self._alpha:g}"

    def next_probs(self, text: tuple[int, ...], request: ReferenceRequest) -> Tensor:
        """(V,) the distribution of the token after a text."""
        target, draft = request.logits(text), logits_after(self._draft, text)
        p, q = request.probs(text).tolist(), request.probs_of(text, draft).tolist()
        p_sure, q_sure = target.softmax(-1).tolist(), draft.softmax(-1).tolist()
        tokens = range(len(p))
        deferred = [self._defers(token, p, q, p_sure, q_sure) for token in tokens]
        moved = sum(q[token] for token in tokens if deferred[token])
        mixed = [moved * p[token] + (0.0 if deferred[token] else q[token]) for token in tokens]
        return torch.tensor(mixed, dtype=torch.float64)

    def _defers(
        self, token: int, p: list[float], q: list[float], p_sure: list[float], q_sure: list[float]
    ) -> bool:
        """Whether a token that the draft model draws is replaced by one from the target."""
        alpha, most = self._alpha, max(p_sure)
        match self._rule:
            case "chow":
                return max(q_sure) < 1 - alpha
            case "diff":
                return max(q_sure) < most - alpha
            case "opt":
                distance = sum(abs(one - other) for one, other in zip(p, q, strict=True)) / 2
                return max(q_sure) < most - alpha * distance
            case "token-v1":
                return q_sure[token] < most - alpha
            case "token-v2":
                return p_sure[token] < most - alpha
            case _:  # token-v3
                return p_sure[token] < (1 - alpha) * most
