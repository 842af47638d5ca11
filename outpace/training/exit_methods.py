"""The methods that train early exits of a model: of the target itself, or of a draft model."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from transformers import PreTrainedModel

from outpace.api.model import Model
from outpace.models.adapter import EXIT_LAYER, with_low_rank_changes
from outpace.models.eager.skipped_modules import check_attention
from outpace.models.hf.target import HFTarget
from outpace.models.slim.exits import CONFIG as EXITS
from outpace.models.slim.exits import check_exits, default_exits
from outpace.models.slim.make import num_layers
from outpace.training.config import ConfigError, Optimizer, TrainConfig
from outpace.training.draft_model import draft_model, save_model
from outpace.training.lessons.early_exits import EarlyExitLesson, SortedLesson, exit_layer
from outpace.training.lessons.lesson import Lesson
from outpace.training.method import NOTHING, Beside, TrainingMethod, frozen_head
from outpace.training.texts import Example


@dataclass(frozen=True, kw_only=True)
class ExitMethod(TrainingMethod):
    """Trains a pretrained model to predict after early layers too."""

    settings: ClassVar[tuple[str, ...]] = ("exits",)

    def defaults(self) -> TrainConfig:
        return TrainConfig(optimizer=Optimizer(rate=3e-4))

    def save(self, drafter: PreTrainedModel, folder: Path, model: Model) -> None:
        save_model(drafter, folder, model)


@dataclass(frozen=True, kw_only=True)
class TargetMethod(ExitMethod):
    """Trains the target itself."""

    noun: ClassVar[str] = "the target itself"
    promise: ClassVar[str] = (
        "drafts tokens with its first layers that all its layers verify: the output's distribution is its "
        "own, not that of the model before"
    )
    whole: ClassVar[str] = "its own"

    def untrained(
        self, model: Model, config: TrainConfig, examples: Sequence[Example] = (), start: str | None = None
    ) -> PreTrainedModel:
        target = model.target
        num_layers(target)  # refuses layers whose outputs cannot be read
        check_attention(target.forward)
        layer = exit_layer(config.exits, target.num_layers)
        check_exit(layer, target)
        check_learned_exits(config.exits.layers, target)
        whole = copy.deepcopy(target.model).float()
        setattr(whole.config.get_text_config(), EXIT_LAYER, layer)
        return with_low_rank_changes(whole, model.name, config.exits.rank) if config.exits.rank else whole

    def lesson(
        self, drafter: PreTrainedModel, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        return EarlyExitLesson(drafter, frozen_head(target), config.exits)

    def described(self, target: str, start: str | None) -> str:
        return f"model with early exits, made from {target}"

    def uses(self, folder: str, target: str, start: str | None) -> list[str]:
        return [f"--target {folder} --method {self.name}"]


@dataclass(frozen=True, kw_only=True)
class DraftExitMethod(ExitMethod):
    """Trains a draft model with several exits."""

    noun: ClassVar[str] = "a draft model"
    needs: ClassVar[Mapping[str, str]] = {"draft": "the model to train"}

    def untrained(
        self, model: Model, config: TrainConfig, examples: Sequence[Example] = (), start: str | None = None
    ) -> PreTrainedModel:
        draft = draft_model(model, config, start)
        check_attention(HFTarget(draft).forward)
        return with_exits(draft, config.exits.layers)

    def lesson(
        self, drafter: PreTrainedModel, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        exits = getattr(drafter.config.get_text_config(), EXITS)
        return SortedLesson(drafter, frozen_head(target), exits)

    def described(self, target: str, start: str | None) -> str:
        return f"draft model with several exits, trained on answers of {target}"

    def uses(self, folder: str, target: str, start: str | None) -> list[str]:
        return [f"--target {target} --method {self.name} --draft {folder}"]


METHODS = (
    TargetMethod(name="layerskip", title="LayerSkip", paper="2404.16710"),
    DraftExitMethod(name="s2d", title="S2D", paper="2407.01955"),
)


def with_exits(draft: PreTrainedModel, given: Sequence[int]) -> PreTrainedModel:
    """The draft model, with its exits in its configuration. ValueError for exits that it lacks."""
    config = draft.config.get_text_config()
    exits = tuple(given) or default_exits(config.num_hidden_layers)
    check_exits(exits, config.num_hidden_layers)
    setattr(config, EXITS, list(exits))
    return draft


def check_exit(layer: int, target: HFTarget) -> None:
    """ConfigError if the target has no exit after `layer` layers."""
    most = target.num_layers - 1
    if layer > most:
        raise ConfigError(
            f"exits.layer is {layer}: a target of {target.num_layers} layers has exits 1 to {most}"
        )


def check_learned_exits(exits: Sequence[int], target: HFTarget) -> None:
    """ConfigError unless `exits` are increasing numbers of layers from 1 to the target's minus 1."""
    if list(exits) != sorted(set(exits) & set(range(1, target.num_layers))):
        raise ConfigError(
            f"exits.layers is {','.join(map(str, exits))}: give increasing numbers of layers, from 1 to "
            f"{target.num_layers - 1}"
        )
