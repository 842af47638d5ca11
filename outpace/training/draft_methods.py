"""The methods that train a draft model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import nn
from transformers import PreTrainedModel

from outpace.api.engines import ENGINES, NUM_TOKENS, Drafting
from outpace.api.model import Model
from outpace.indexes.prompt_profile import PromptProfile
from outpace.models.hf.target import HFTarget
from outpace.models.mask_token import KEY
from outpace.training.config import Answers, Distillation, Optimizer, TrainConfig
from outpace.training.draft_model import draft_model, save_model
from outpace.training.lessons.draft_models import (
    AlignmentLesson,
    DraftModelLesson,
    FastDraftLesson,
    FilteredLesson,
    MaskLesson,
    SequenceLesson,
    offline_lesson,
)
from outpace.training.lessons.lesson import Lesson
from outpace.training.method import NOTHING, Beside, FirstRun, TrainingMethod, frozen_head
from outpace.training.texts import Example


@dataclass(frozen=True, kw_only=True)
class DraftMethod(TrainingMethod):
    """Trains a draft model on the target's answers."""

    # makes the lesson of a draft model, given the target's LM head
    learns: Callable[[PreTrainedModel, nn.Module, Distillation], Lesson] = DraftModelLesson
    answers: Answers = Answers()

    noun: ClassVar[str] = "a draft model"
    settings: ClassVar[tuple[str, ...]] = ("distillation",)
    needs: ClassVar[Mapping[str, str]] = {"draft": "the model to train"}

    def defaults(self) -> TrainConfig:
        return TrainConfig(optimizer=Optimizer(rate=3e-4), answers=self.answers)

    def untrained(
        self, model: Model, config: TrainConfig, examples: Sequence[Example] = (), start: str | None = None
    ) -> PreTrainedModel:
        return draft_model(model, config, start)

    def lesson(
        self, drafter: PreTrainedModel, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        return self.learns(drafter, frozen_head(target), config.distillation)

    def save(self, drafter: PreTrainedModel, folder: Path, model: Model) -> None:
        save_model(drafter, folder, model)

    def uses(self, folder: str, target: str, start: str | None) -> list[str]:
        return [f"--target {target} --method speculative-sampling --draft {folder}"]

    def in_vllm(self, config: Mapping[str, Any]) -> Drafting | None:
        return Drafting(ENGINES["vllm"].draft_model, NUM_TOKENS)


@dataclass(frozen=True, kw_only=True)
class OnPolicyMethod(DraftMethod):
    """The draft model generates the answers of a share of the texts itself."""

    def lesson(
        self, drafter: PreTrainedModel, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        return DraftModelLesson(drafter, frozen_head(target), config.distillation, beside.end_tokens)


@dataclass(frozen=True, kw_only=True)
class FilteredMethod(DraftMethod):
    """A reference, the same draft model after plain distillation, decides which tokens are learned."""

    def first_run(self, model: Model, config: TrainConfig, start: str | None) -> FirstRun:
        distillation = replace(config.distillation, divergence="forward_kl", on_policy=0.0)
        draft = draft_model(model, config, start)
        lesson = DraftModelLesson(draft, frozen_head(model.target), distillation)
        return FirstRun(draft, lesson, replace(config, distillation=distillation))

    def lesson(
        self, drafter: PreTrainedModel, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        assert isinstance(beside.reference, PreTrainedModel)
        return FilteredLesson(drafter, beside.reference, frozen_head(target), config.distillation)


@dataclass(frozen=True, kw_only=True)
class MaskMethod(DraftMethod):
    """The draft model learns to draft several tokens in one forward, in masks: in its last token, unless its
    configuration names another."""

    def lesson(
        self, drafter: PreTrainedModel, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        if getattr(drafter.config, KEY, None) is None:
            setattr(drafter.config, KEY, target.vocab - 1)
        mask = getattr(drafter.config, KEY)
        return MaskLesson(drafter, frozen_head(target), config.distillation, mask)

    def uses(self, folder: str, target: str, start: str | None) -> list[str]:
        return [f"--target {target} --method {self.name} --draft {folder}"]

    def in_vllm(self, config: Mapping[str, Any]) -> Drafting | None:
        return Drafting(ENGINES["vllm"].draft_model, NUM_TOKENS, {"parallel_drafting": True})


@dataclass(frozen=True, kw_only=True)
class OwnDraftMethod(DraftMethod):
    """Without a draft model it makes one, smaller than the target."""

    needs: ClassVar[Mapping[str, str]] = {}
    takes: ClassVar[tuple[str, ...]] = ("draft",)


@dataclass(frozen=True, kw_only=True)
class RoutedMethod(DraftMethod):
    """Trains a draft model that is later chosen for prompts like those that it learned from."""

    def save_prompts(self, examples: Sequence[Example], folder: Path, vocab: int) -> None:
        prompts = [example.tokens[: example.first] for example in examples]
        PromptProfile.learned(prompts, vocab).save(folder)

    def uses(self, folder: str, target: str, start: str | None) -> list[str]:
        routed = f"--draft {start or 'GENERIC'} --specialists {folder},OTHERS"
        return [*super().uses(folder, target, start), f"--target {target} --method {self.name} {routed}"]


@dataclass(frozen=True, kw_only=True)
class GrowingMethod(DraftMethod):
    """Trains on growing parts of the data."""

    settings: ClassVar[tuple[str, ...]] = ("distillation", "growth")
    grows: ClassVar[bool] = True
    reports_others: ClassVar[bool] = True


WARM = (0.0, 0.3, 0.7, 1.0)  # temperatures of the target's answers
METHODS = (
    OnPolicyMethod(name="distillspec", title="DistillSpec", paper="2310.08461"),
    FilteredMethod(name="adaspec", title="AdaSPEC", paper="2510.19779"),
    DraftMethod(
        name="direct-alignment",
        title="direct alignment",
        paper="2403.00858",
        learns=AlignmentLesson,
        answers=Answers(temperatures=WARM, top_p=0.95),
    ),
    MaskMethod(name="pard", title="PARD", paper="2504.18583"),
    OwnDraftMethod(name="fastdraft", title="FastDraft", paper="2411.11055", learns=FastDraftLesson),
    RoutedMethod(
        name="multilingual-drafter",
        title="multilingual drafters",
        paper="2406.16758",
        learns=SequenceLesson,
        answers=Answers(temperatures=WARM),
    ),
    GrowingMethod(
        name="domain-drafter", title="domain draft models", paper="2503.07807", learns=offline_lesson
    ),
)
