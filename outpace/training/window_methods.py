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
from outpace.models.mask_token import WINDOW_MASK
from outpace.training.config import Distillation, TrainConfig
from outpace.training.draft_methods import OwnDraftMethod
from outpace.training.draft_model import draft_model
from outpace.training.lessons.lesson import Lesson
from outpace.training.lessons.windows import WindowLesson
from outpace.training.method import NOTHING, Beside, frozen_head
from outpace.training.texts import Example

NUM_ADDED = 2  # tokens beyond the target's: the mask, and one behind windows


@dataclass(frozen=True, kw_only=True)
class WindowMethod(OwnDraftMethod):
    """Makes a model, or continues with a given draft model, that reads masks beyond the target's tokens."""

    others: tuple[str, ...] = ()  # further methods that draft with the model

    def defaults(self) -> TrainConfig:
        distillation = Distillation(num_layers=4, size=0.5, num_masks=10)
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


METHODS = (WindowMethod(name="specdiff", title="SpecDiff", paper="2408.05636"),)
