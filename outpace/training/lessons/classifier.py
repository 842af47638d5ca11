"""How a predictor learns which tokens to accept, from hidden states with labels.

Letters: N tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from outpace.training.evaluation import ClassifierEvaluation
from outpace.training.features import Batch
from outpace.training.lessons.lesson import Lesson
from outpace.training.predictions import auc


class ClassifierLesson(Lesson):
    """A predictor that gives the log odds that a token is to be accepted, from a hidden state; no other
    weights are trained."""

    evaluation_type = ClassifierEvaluation

    def __init__(self, predictor: nn.Module, target_head: nn.Module, rejection_weight: float) -> None:
        """`rejection_weight`: of a token that is not to be accepted in the loss; others have 1."""
        super().__init__(dict(predictor.named_parameters()), target_head)
        self.predictor, self._rejection_weight = predictor, rejection_weight

    def labelled(self, batch: Batch) -> tuple[Tensor, Tensor]:  # (N, D), (N,) bool
        """The hidden states at the tokens of a batch that have a label, and whether to accept each."""
        raise NotImplementedError

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        """Binary cross entropy, with the tokens that are not to be accepted weighted."""
        log_odds, accept = self._predicted(batch)
        losses = torch.where(accept, -logsigmoid(log_odds), -self._rejection_weight * logsigmoid(-log_odds))
        return losses.sum() / max(1, len(losses))

    @torch.no_grad()
    def evaluation(self, step: int, batches: Iterable[Batch]) -> ClassifierEvaluation:
        predictions = [self._predicted(batch) for batch in batches]
        log_odds, accept = (torch.cat(part) for part in zip(*predictions, strict=True))
        passes = log_odds > 0

        def share(of: Tensor) -> float:
            return float(of.float().mean()) if len(of) else 0.0

        return ClassifierEvaluation(
            step, share(accept), share(passes[accept]), share(passes[~accept]), auc(log_odds, accept)
        )

    def _predicted(self, batch: Batch) -> tuple[Tensor, Tensor]:  # (N,), (N,) bool
        hidden, accept = self.labelled(batch)
        log_odds: Any = self.predictor(hidden.to(next(self.predictor.parameters())))
        return log_odds.float(), accept
