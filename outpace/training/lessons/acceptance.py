"""How predictors of a draft model's acceptance learn from draft tokens in the place of the target's.

At every position of a token that the target generated, the frozen draft model drafts a token. The target's
distribution there gives the probability that it is accepted.

Letters: R texts, T tokens, C and M columns (see training.lessons.lesson), V vocabulary size, D hidden size of
the draft model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import PreTrainedModel

from outpace.models.predictors.predictor import AcceptancePredictor
from outpace.training.config import Predictor
from outpace.training.evaluation import PredictorEvaluation
from outpace.training.features import Batch
from outpace.training.lessons.draft_models import logits_of
from outpace.training.lessons.lesson import Lesson, following
from outpace.training.predictions import best_f1, calibration_error


@dataclass(frozen=True)
class Verified:
    """The draft token of each column."""

    tokens: Tensor  # (M,)
    logits: Tensor  # (M, V) from which it was drawn, before sampling parameters
    acceptance: Tensor  # (M,) probability that the target accepts it

    @property
    def draft_probs(self) -> Tensor:  # (M,)
        """The probability of the token, before sampling parameters."""
        return self.logits.softmax(-1).gather(1, self.tokens[:, None])[:, 0]


class AcceptanceLesson(Lesson):
    """A predictor of the acceptance of draft tokens; the draft model is not trained."""

    evaluation_type = PredictorEvaluation

    def __init__(
        self,
        predictor: AcceptancePredictor,
        draft: PreTrainedModel,
        target_head: nn.Module,
        settings: Predictor,
        rejection_weight: float,  # in the loss; an acceptance has 1
    ) -> None:
        super().__init__(dict(predictor.named_parameters()), target_head)
        self.predictor, self.settings = predictor, settings
        self._draft = (draft,)  # in a tuple, so that it is no submodule: it is not trained
        self._rejection_weight = rejection_weight

    def predicted(self, batch: Batch, noise: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """For some draft tokens the predicted log odds of acceptance, the probability of acceptance, and the
        draft probability. (N,) each."""
        raise NotImplementedError

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        """Binary cross entropy with the probability that a token is accepted, rejections weighted."""
        log_odds, accepted, _ = self.predicted(batch, noise)
        rejected = self._rejection_weight * (1 - accepted)
        losses = -accepted * logsigmoid(log_odds.float()) - rejected * logsigmoid(-log_odds.float())
        return losses.sum() / max(1, len(losses))

    @torch.no_grad()
    def evaluation(self, step: int, batches: Iterable[Batch]) -> PredictorEvaluation:
        """Measurements on draft tokens that are the same in every evaluation of a run."""
        noise = torch.Generator().manual_seed(0)
        predictions = [self.predicted(batch, noise) for batch in batches]
        log_odds, accepted, draft_probs = (torch.cat(part).float() for part in zip(*predictions, strict=True))
        prediction = log_odds.sigmoid()
        return PredictorEvaluation(
            step,
            float(accepted.mean()) if len(accepted) else 0.0,
            best_f1(prediction, accepted),
            best_f1(draft_probs, accepted),
            calibration_error(prediction, accepted, self._rejection_weight),
        )

    @torch.no_grad()
    def verified(self, batch: Batch, noise: torch.Generator) -> Verified:
        """A token of the draft model at each column, drawn at the temperature of the settings."""
        temperature = self.settings.temperature
        logits = self.at_columns(following(logits_of(self._draft[0], batch), 1), batch).float()
        target_logits = self.target_logits(batch, 0)
        if temperature == 0:
            tokens = logits.argmax(-1)
            acceptance = (tokens == target_logits.argmax(-1)).float()
        else:
            q = (logits / temperature).softmax(-1)
            uniform = torch.rand(len(q), 1, generator=noise).to(q)
            tokens = (q.cumsum(-1) < uniform * q.sum(-1, keepdim=True)).sum(-1).clamp_max(q.shape[-1] - 1)
            p = (target_logits / temperature).softmax(-1)
            at = tokens[:, None]
            acceptance = (p.gather(1, at) / q.gather(1, at))[:, 0].clamp_max(1)
        return Verified(tokens, logits, acceptance)
