"""How SpecDec++'s predictor learns (Huang et al. 2025).

Letters: R texts, T tokens, N draft tokens, D hidden size of the draft model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.models.eager.captures import OutputCapture
from outpace.models.predictors.hidden_state.predictor import KIND, HiddenStatePredictor
from outpace.training.config import Predictor, TrainConfig
from outpace.training.features import Batch
from outpace.training.lessons.acceptance import AcceptanceLesson
from outpace.training.lessons.lesson import following
from outpace.training.predictor_methods import AcceptanceMethod

LM_HEAD_INPUT = -1  # in OutputCapture


class HiddenStateLesson(AcceptanceLesson):
    """SpecDec++ (Huang et al. 2025): the draft model reads its own draft tokens, a share of them replaced by
    the target's tokens; the acceptance of each draft token is predicted from the hidden state after it."""

    predictor: HiddenStatePredictor

    def __init__(
        self,
        predictor: HiddenStatePredictor,
        draft: PreTrainedModel,
        target_head: nn.Module,
        settings: Predictor,
    ) -> None:
        super().__init__(predictor, draft, target_head, settings, settings.rejection_weight)

    def predicted(self, batch: Batch, noise: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        drafted, columns = self.verified(batch, noise), self.columns(batch)
        is_own = torch.rand(len(drafted.tokens), generator=noise) >= self.settings.mix
        is_own = is_own.to(columns.device)
        tokens, places = batch.tokens.clone(), columns.nonzero()[is_own]
        tokens[places[:, 0], places[:, 1] + 2] = drafted.tokens[is_own]
        states = following(self._states(tokens), 2)[columns][is_own]
        log_odds = self.predictor(states.to(self.predictor.output.weight.dtype))
        return log_odds, drafted.acceptance[is_own], drafted.draft_probs[is_own]

    @torch.no_grad()
    def _states(self, tokens: Tensor) -> Tensor:  # (R, T) -> (R, T, D)
        """The draft model's states at the input of its LM head, after each token."""
        draft = self._draft[0]
        with OutputCapture(draft, 0).capture(frozenset([LM_HEAD_INPUT]), False) as captured:
            draft(input_ids=tokens, use_cache=False, return_dict=True)
        return captured[LM_HEAD_INPUT]


def _new(draft: PreTrainedModel, config: TrainConfig) -> HiddenStatePredictor:
    size = int(next(draft.get_input_embeddings().parameters()).shape[1])
    predictor = HiddenStatePredictor(size, config.predictor.num_layers)
    for parameter in predictor.blocks.parameters():  # they begin as the identity
        nn.init.zeros_(parameter)
    return predictor


METHODS = (
    AcceptanceMethod(
        name=KIND.predictor.method,
        title=KIND.title,
        paper=KIND.paper,
        new=_new,
        lesson_type=HiddenStateLesson,
    ),
)
