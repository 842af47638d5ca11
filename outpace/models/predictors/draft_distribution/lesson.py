"""How DISCO's predictor learns (Mamou et al. 2024).

Letters: N draft tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.models.predictors.draft_distribution.predictor import (
    KIND,
    DraftDistributionPredictor,
    features,
)
from outpace.training.config import Optimizer, Predictor, TrainConfig
from outpace.training.features import Batch
from outpace.training.lessons.acceptance import AcceptanceLesson
from outpace.training.predictor_methods import AcceptanceMethod


class DraftDistributionLesson(AcceptanceLesson):
    """DISCO (Mamou et al. 2024): drafts of full length are verified one after the other along the target's
    text; the acceptance of each draft token is predicted from the distribution that it was drawn from and its
    position in the draft. After a rejected token the next draft begins."""

    predictor: DraftDistributionPredictor

    def __init__(
        self,
        predictor: DraftDistributionPredictor,
        draft: PreTrainedModel,
        target_head: nn.Module,
        settings: Predictor,
    ) -> None:
        super().__init__(predictor, draft, target_head, settings, rejection_weight=1.0)

    def predicted(self, batch: Batch, noise: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        verified = self.verified(batch, noise)
        flips = torch.rand(len(verified.tokens), generator=noise).to(verified.acceptance)
        accepted = flips < verified.acceptance
        counts = self.columns(batch).sum(1).tolist()
        places = [
            draft_positions(of_text.tolist(), self.settings.depth) for of_text in accepted.split(counts)
        ]
        positions = torch.tensor([place for of_text in places for place in of_text], dtype=torch.int64)
        positions = positions.to(accepted.device)
        drafted = positions > 0
        given = features(verified.logits[drafted], positions[drafted])
        log_odds = self.predictor(given.to(self.predictor.output.weight.dtype))
        return log_odds, accepted[drafted].float(), verified.draft_probs[drafted]


def draft_positions(accepted: Sequence[bool], depth: int) -> list[int]:
    """For each token of a text, given whether its draft token is accepted, its position, from 1, in a draft
    of `depth` tokens; 0 for the bonus token after a fully accepted draft. The next draft begins after a bonus
    token, or after the target's token in place of a rejected one."""
    positions, position = list[int](), 0
    for is_accepted in accepted:
        position = 0 if position == depth else position + 1
        positions.append(position)
        if position and not is_accepted:
            position = 0
    return positions


def _new(draft: PreTrainedModel, config: TrainConfig) -> DraftDistributionPredictor:
    return DraftDistributionPredictor(config.predictor.width)


METHODS = (
    AcceptanceMethod(
        name=KIND.predictor.method,
        title=KIND.title,
        paper=KIND.paper,
        new=_new,
        lesson_type=DraftDistributionLesson,
        optimizer=Optimizer(rate=1e-2),  # its few weights learn slowly at the rate of heads
    ),
)
