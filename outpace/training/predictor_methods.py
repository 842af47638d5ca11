"""The base classes of methods that train predictors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel

from outpace.api.model import Model
from outpace.models.fingerprint import model_fingerprint, target_fingerprint
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.fingerprint import head_fingerprint
from outpace.models.hf.target import HFTarget
from outpace.models.predictors.folder import save_predictor
from outpace.models.predictors.predictor import AcceptancePredictor, Pair, Predictor
from outpace.training.config import Optimizer, TrainConfig
from outpace.training.draft_model import draft_model
from outpace.training.head_methods import head_in, learning_head
from outpace.training.lessons.lesson import Lesson
from outpace.training.method import NOTHING, STORED, Beside, TrainingMethod, frozen_head
from outpace.training.texts import Example


@dataclass(frozen=True)
class Judged:
    """A predictor with the draft model or head for whose tokens it learns to predict acceptance."""

    predictor: Any  # a Predictor
    drafter: Any  # PreTrainedModel or DraftHead


@dataclass(frozen=True, kw_only=True)
class PredictorMethod(TrainingMethod):
    """Trains a predictor for a draft model or head, which is not trained."""

    noun: ClassVar[str] = "a predictor"
    settings: ClassVar[tuple[str, ...]] = ("predictor",)
    promise: ClassVar[str] = (
        "ends drafts that the target verifies: the output's distribution stays that of the target"
    )

    def save(self, drafter: Judged, folder: Path, model: Model) -> None:
        save_predictor(drafter.predictor.to(STORED), folder)

    def uses(self, folder: str, target: str, start: str | None) -> list[str]:
        (option,) = self.needs
        return [f"--target {target} --method {self.name} --{option} {start} --predictor {folder}"]


@dataclass(frozen=True, kw_only=True)
class DraftPredictorMethod(PredictorMethod):
    """Trains a small network that predicts something about each token of a draft model."""

    new: Callable[[PreTrainedModel, TrainConfig], AcceptancePredictor]
    optimizer: Optimizer = Optimizer()

    needs: ClassVar[Mapping[str, str]] = {"draft": "the model whose tokens it learns to judge"}

    def defaults(self) -> TrainConfig:
        return TrainConfig(optimizer=self.optimizer)

    def untrained(
        self, model: Model, config: TrainConfig, examples: Sequence[Example] = (), start: str | None = None
    ) -> Judged:
        return self.judging(draft_model(model, config, start), model.target, config)

    def judging(self, draft: PreTrainedModel, target: HFTarget, config: TrainConfig) -> Judged:
        """The predictor before training, with its draft model."""
        predictor = seeded(config, lambda: self.new(draft, config))
        predictor.trained_for = Pair(model_fingerprint(draft), target_fingerprint(target))
        return Judged(predictor.to(target.device), draft)


@dataclass(frozen=True, kw_only=True)
class AcceptanceMethod(DraftPredictorMethod):
    """Trains a small network that predicts for each token of a draft model whether the target accepts it."""

    lesson_type: Callable[..., Lesson]  # given the predictor, the draft model, the LM head and the settings

    def lesson(
        self, drafter: Judged, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        return self.lesson_type(drafter.predictor, drafter.drafter, frozen_head(target), config.predictor)

    def described(self, target: str, start: str | None) -> str:
        return f"predictor of which tokens of {start} are accepted by {target}"


@dataclass(frozen=True, kw_only=True)
class HeadPredictorMethod(PredictorMethod):
    """Trains a predictor for a head of EAGLE."""

    new: Callable[[DraftHead, HFTarget, TrainConfig], Predictor]

    def untrained(
        self, model: Model, config: TrainConfig, examples: Sequence[Example] = (), start: str | None = None
    ) -> Judged:
        self.check_target(model.target)
        assert start is not None
        head = head_in(start, "eagle", model.target)
        assert isinstance(head, DraftHead)
        return self.judging(head, model.target, config)

    def judging(self, head: DraftHead, target: HFTarget, config: TrainConfig) -> Judged:
        """The predictor before training, with its head."""
        predictor = seeded(config, lambda: self.new(head, target, config))
        predictor.trained_for = Pair(head_fingerprint(head), target_fingerprint(target))
        return Judged(predictor.to(target.device), head)

    def check_target(self, target: HFTarget) -> None:
        """ValueError for a target that no predictor is trained for."""


def seeded(config: TrainConfig, make: Callable[[], Any]) -> Any:
    """What `make` returns, with torch's random numbers seeded by the settings' seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return make()


def frozen_head_of(drafter: Judged, target: HFTarget) -> torch.nn.Module:
    """A copy of the target's LM head for the losses; a head without an LM head of its own uses it too."""
    return learning_head(drafter.drafter, target)
