"""How SpecBranch's predictor learns (Shen et al. 2025) whether the target rejects the first token of a draft,
accepts all of it, or neither.

At every position of texts that the target generated, the frozen draft model drafts a token, teacher-forced.
Up to the first rejection a draft of several tokens is the text, so that one pass gives the probabilities of
the three classes for the drafts of all positions. (At temperature 0 this is what decoding does; above, the
tokens that are accepted are those of the text here.)

Letters: R texts, C columns (see training.lessons.lesson), M columns whose whole draft is inside the text, K
layers, D hidden size of the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.api.model import Model
from outpace.models.fingerprint import model_fingerprint, target_fingerprint
from outpace.models.hf.target import HFTarget
from outpace.models.predictors.predictor import Pair
from outpace.models.predictors.rollback.predictor import KIND, LAYERS, RollbackPredictor
from outpace.training.config import ConfigError, Predictor, TrainConfig
from outpace.training.draft_model import draft_model
from outpace.training.evaluation import RollbackEvaluation
from outpace.training.features import Batch
from outpace.training.lessons.draft_models import logits_of
from outpace.training.lessons.lesson import Lesson, following
from outpace.training.losses import acceptance
from outpace.training.method import NOTHING, Beside, frozen_head
from outpace.training.predictor_methods import Judged, PredictorMethod, seeded
from outpace.training.texts import DataError, Example


class RollbackLesson(Lesson):
    """A predictor of the fate of drafts; the draft model is not trained."""

    evaluation_type = RollbackEvaluation

    def __init__(
        self,
        predictor: RollbackPredictor,
        draft: PreTrainedModel,
        target: HFTarget,
        target_head: nn.Module,
        settings: Predictor,
    ) -> None:
        super().__init__(dict(predictor.named_parameters()), target_head)
        self.predictor = predictor
        self._read = predictor.layers(target)
        self.layers = sorted({-1, *self._read})
        self.num_steps = predictor.depth - 1  # its first token is committed
        self._temperature = settings.temperature
        self._frozen = (draft, target.embed)  # not as modules: they are not trained

    def columns(self, batch: Batch) -> Tensor:  # (R, C) bool
        """Columns after which the text has as many generated tokens as a draft."""
        return following(batch.learns, 2) & following(batch.learns, 1 + self.num_steps)

    def features(self, batch: Batch) -> Tensor:  # (M, (K + 1) * D)
        """The target's hidden states at the token before the draft's root, and the root's embedding."""
        columns = self.columns(batch)
        hidden = [batch.hidden[layer][:, :-1][columns] for layer in self._read]
        embedded = self._frozen[1](following(batch.tokens, 1)[columns])
        return torch.cat([*hidden, embedded.to(hidden[0])], -1)

    @torch.no_grad()
    def classes(self, batch: Batch) -> Tensor:  # (M, 3)
        """The probabilities that none, some and all tokens of a draft are accepted."""
        tested = following(batch.learns, 2)
        own = following(logits_of(self._frozen[0], batch), 1)
        head = self._target_head[0]
        states = following(batch.hidden[-1], 1)
        full = head(states.to(next(head.parameters()).dtype))
        accepted = torch.zeros(tested.shape, device=tested.device)  # (R, C) of the token after each root
        if self._temperature == 0:
            accepted[tested] = (own.argmax(-1) == full.argmax(-1))[tested].float()
        else:
            scale = self._temperature
            accepted[tested] = acceptance(own.float() / scale, full.float() / scale, tested)
        columns, whole = self.columns(batch), torch.ones_like(accepted)
        for step in range(self.num_steps):
            moved = torch.zeros_like(accepted)
            moved[:, : accepted.shape[1] - step] = accepted[:, step:]
            whole = whole * moved
        first = accepted[columns]
        return torch.stack((1 - first, first - whole[columns], whole[columns]), -1)

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        """The mean cross entropy with the probabilities of the classes."""
        labels = self.classes(batch)
        losses = -(labels * self.predictor(self.features(batch), noise).log_softmax(-1)).sum(-1)
        return losses.sum() / max(1, len(losses))

    @torch.no_grad()
    def evaluation(self, step: int, batches: Iterable[Batch]) -> RollbackEvaluation:
        pairs = [(self.predictor(self.features(batch)).argmax(-1), self.classes(batch)) for batch in batches]
        foreseen, labels = (torch.cat(parts).cpu() for parts in zip(*pairs, strict=True))
        count = max(1, len(labels))
        right = labels.gather(1, foreseen[:, None]).sum() / count
        shares = (labels.sum(0) / count).tolist()
        return RollbackEvaluation(step, float(right), (shares[0], shares[1], shares[2]))


@dataclass(frozen=True, kw_only=True)
class RollbackMethod(PredictorMethod):
    """Trains a predictor of what the target will accept of a draft model's drafts."""

    noun: ClassVar[str] = "a predictor of rollbacks"
    needs: ClassVar[Mapping[str, str]] = {"draft": "the model whose drafts it learns to judge"}
    promise: ClassVar[str] = (
        "decides where drafts that the target verifies are cut: the output's distribution stays that of the "
        "target"
    )

    def defaults(self) -> TrainConfig:
        config = TrainConfig()
        answers = replace(config.answers, temperatures=(0.0,))
        predictor = replace(config.predictor, depth=5, num_layers=LAYERS, temperature=0.0)
        return replace(config, answers=answers, predictor=predictor)

    def check_texts(self, examples: Sequence[Example], config: TrainConfig) -> None:
        depth = config.predictor.depth
        if depth < 2:
            raise ConfigError(f"predictor.depth is {depth}: give 2 or more, as the first token is not judged")
        if max(len(example.tokens) - example.first for example in examples) < depth - 1:
            raise DataError(
                f"no answer has the {depth - 1} tokens of a draft: give more prompts, a larger "
                "answers.max_tokens or a smaller predictor.depth"
            )

    def untrained(
        self, model: Model, config: TrainConfig, examples: Sequence[Example] = (), start: str | None = None
    ) -> Judged:
        return self.judging(draft_model(model, config, start), model.target, config)

    def judging(self, draft: PreTrainedModel, target: HFTarget, config: TrainConfig) -> Judged:
        """The predictor before training, with its draft model."""
        size, settings = int(next(target.embed.parameters()).shape[1]), config.predictor
        layers = min(settings.num_layers, target.num_layers)
        predictor = seeded(config, lambda: RollbackPredictor(size, layers, settings.depth))
        predictor.trained_for = Pair(model_fingerprint(draft), target_fingerprint(target))
        return Judged(predictor.to(target.device), draft)

    def lesson(
        self, drafter: Judged, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        head = frozen_head(target)
        return RollbackLesson(drafter.predictor, drafter.drafter, target, head, config.predictor)

    def described(self, target: str, start: str | None) -> str:
        return f"predictor of which drafts of {start} are accepted by {target}"


METHODS = (RollbackMethod(name=KIND.predictor.method, title=KIND.title, paper=KIND.paper),)
