"""The methods that train a draft model to fill windows of masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from outpace.api.engines import Drafting
from outpace.api.model import Model
from outpace.models.hf.target import HFTarget
from outpace.models.mask_token import WINDOW_END, WINDOW_MASK
from outpace.training.config import Answers, Distillation, TrainConfig
from outpace.training.draft_methods import OwnDraftMethod
from outpace.training.draft_model import draft_model
from outpace.training.lessons.lesson import Lesson
from outpace.training.lessons.windows import RefinedWindowLesson, StreakLesson, WindowLesson
from outpace.training.method import NOTHING, Beside, frozen_head
from outpace.training.texts import Example

NUM_ADDED = 2  # tokens beyond the target's: the mask, and one behind windows


@dataclass(frozen=True, kw_only=True)
class WindowMethod(OwnDraftMethod):
    """Makes a model, or continues with a given draft model, that reads masks beyond the target's tokens."""

    num_masks: int = 10  # of the longest draft
    others: tuple[str, ...] = ()  # further methods that draft with the model

    def defaults(self) -> TrainConfig:
        distillation = Distillation(num_layers=4, size=0.5, num_masks=self.num_masks)
        return replace(super().defaults(), distillation=distillation)

    def untrained(
        self, model: Model, config: TrainConfig, examples: Sequence[Example] = (), start: str | None = None
    ) -> PreTrainedModel:
        draft, vocab = draft_model(model, config, start, num_added=NUM_ADDED), model.target.vocab
        if draft.config.get_text_config().vocab_size == vocab:
            with torch.random.fork_rng():
                torch.manual_seed(config.seed)
                draft.resize_token_embeddings(vocab + NUM_ADDED, mean_resizing=False)
        setattr(draft.config, WINDOW_MASK, vocab)
        return draft

    def lesson(
        self, drafter: PreTrainedModel, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        return WindowLesson(drafter, frozen_head(target), config.distillation, target.vocab, target.vocab)

    def uses(self, folder: str, target: str, start: str | None) -> list[str]:
        return [f"--target {target} --method {name} --draft {folder}" for name in (self.name, *self.others)]

    def in_vllm(self, config: Mapping[str, Any]) -> Drafting | None:
        return None


@dataclass(frozen=True, kw_only=True)
class EndedWindowMethod(WindowMethod):
    """The model also reads a token behind each window. It learns in two stages, the second from the model of
    the first."""

    def untrained(
        self, model: Model, config: TrainConfig, examples: Sequence[Example] = (), start: str | None = None
    ) -> PreTrainedModel:
        draft = super().untrained(model, config, examples, start)
        setattr(draft.config, WINDOW_END, model.target.vocab + 1)
        return draft

    def lesson(
        self, drafter: PreTrainedModel, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        settings, vocab = config.distillation, target.vocab
        kind = RefinedWindowLesson if settings.refinement else WindowLesson
        return kind(drafter, frozen_head(target), settings, vocab, vocab, vocab + 1)


@dataclass(frozen=True, kw_only=True)
class StreakMethod(WindowMethod):
    """The model learns to draft long streaks of the target's sampled answers. The authors train low-rank
    changes; here all weights are trained."""

    def defaults(self) -> TrainConfig:
        return replace(super().defaults(), answers=Answers(temperatures=(1.0,), top_p=0.95))

    def lesson(
        self, drafter: PreTrainedModel, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        return StreakLesson(drafter, frozen_head(target), config.distillation, target.vocab, target.vocab)


METHODS = (
    WindowMethod(name="specdiff", title="SpecDiff", paper="2408.05636", others=("diffuspec",)),
    StreakMethod(name="specdiff2", title="SpecDiff-2", paper="2511.00606", num_masks=16),
    EndedWindowMethod(name="deer", title="DEER", paper="2512.15176", num_masks=32),
)
