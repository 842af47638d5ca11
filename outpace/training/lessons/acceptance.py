"""How predictors of a draft model's acceptance learn from draft tokens in the place of the target's.

At every token that the target generated, the frozen draft model drafts a token after the text before it. The
target's distribution there tells how probably it is accepted.

Letters: R texts, T tokens, C columns and M of them (see training.lessons.lesson), V vocabulary size, D hidden
size of the draft model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import PreTrainedModel

from outpace.models.hf.captures import OutputCapture
from outpace.models.predictors.draft_distribution_predictor import DraftDistributionPredictor, features
from outpace.models.predictors.hidden_state_predictor import HiddenStatePredictor
from outpace.models.predictors.predictor import AcceptancePredictor
from outpace.training.config import Predictor
from outpace.training.evaluation import PredictorEvaluation
from outpace.training.features import Batch
from outpace.training.lessons.draft_models import logits_of
from outpace.training.lessons.lesson import Lesson, following
from outpace.training.predictions import best_f1, calibration_error

LM_HEAD_INPUT = -1  # in OutputCapture


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
        self._draft = (draft,)  # not as a module: it is not trained
        self._rejection_weight = rejection_weight

    def predicted(self, batch: Batch, noise: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """For some draft tokens the logarithm of the odds that they are accepted, as predicted; the share in
        which they are; and their draft probabilities. (N,) each."""
        raise NotImplementedError

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        """Binary cross entropy with the probability that a token is accepted, rejections weighted."""
        log_odds, accepted, _ = self.predicted(batch, noise)
        rejected = self._rejection_weight * (1 - accepted)
        losses = -accepted * logsigmoid(log_odds.float()) - rejected * logsigmoid(-log_odds.float())
        return losses.sum() / max(1, len(losses))

    @torch.no_grad()
    def evaluation(self, step: int, batches: Iterable[Batch]) -> PredictorEvaluation:
        """Every evaluation of a run drafts the same tokens."""
        noise = torch.Generator().manual_seed(0)
        found = [self.predicted(batch, noise) for batch in batches]
        log_odds, accepted, draft_probs = (torch.cat(each).float() for each in zip(*found, strict=True))
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


class HiddenStateLesson(AcceptanceLesson):
    """SpecDec++ (Huang et al. 2025): the draft model reads its own tokens, a share of them replaced by the
    target's, and the acceptance of each of its own is predicted from the hidden state after it."""

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
        with OutputCapture(draft, 0).capture(frozenset([LM_HEAD_INPUT]), False) as found:
            draft(input_ids=tokens, use_cache=False, return_dict=True)
        return found[LM_HEAD_INPUT]


class DraftDistributionLesson(AcceptanceLesson):
    """DISCO (Mamou et al. 2024): drafts of full length are verified one after the other along the target's
    text, and whether each token was accepted is predicted from the distribution that it was drawn from and
    its position. Tokens after a rejected one are not drafted: the next draft begins there."""

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
        places = [draft_positions(each.tolist(), self.settings.depth) for each in accepted.split(counts)]
        positions = torch.tensor([place for each in places for place in each], dtype=torch.int64)
        positions = positions.to(accepted.device)
        drafted = positions > 0
        given = features(verified.logits[drafted], positions[drafted])
        log_odds = self.predictor(given.to(self.predictor.output.weight.dtype))
        return log_odds, accepted[drafted].float(), verified.draft_probs[drafted]


def draft_positions(accepted: Sequence[bool], depth: int) -> list[int]:
    """For each token of a text its position, from 1, in the draft of `depth` tokens that it belongs to if its
    draft token is accepted or not; 0 for the target's own token after a draft that was accepted whole. In the
    place of a rejected token the target's own follows, so the next draft begins after it."""
    positions, position = list[int](), 0
    for each in accepted:
        position = 0 if position == depth else position + 1
        positions.append(position)
        if position and not each:
            position = 0
    return positions
