"""A method of `outpace train`: what it trains and begins with, its settings, its lesson, and what it writes.

The methods of draft heads and predictors are in the folder of that head or predictor, in `lesson.py`, all
others in `training/*_methods.py`. `training.methods` finds them all.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from outpace.api.engines import Drafting
from outpace.api.model import Model
from outpace.models.hf.target import HFTarget
from outpace.training.config import ConfigError, TrainConfig
from outpace.training.lessons.lesson import Lesson
from outpace.training.texts import Example

STORED = torch.bfloat16  # dtype of saved weights


@dataclass(frozen=True)
class FirstRun:
    """A model that is trained before the drafter, or the drafter itself, and its lesson and settings."""

    model: nn.Module
    lesson: Lesson
    config: TrainConfig


@dataclass(frozen=True)
class Beside:
    """What some lessons need beside the drafter and the target."""

    reference: nn.Module | None = None  # the trained model of the first run
    end_tokens: tuple[int, ...] = ()  # tokens that end the texts that a draft model generates itself


NOTHING = Beside()


@dataclass(frozen=True, kw_only=True)
class TrainingMethod:
    """Base class; a family of methods that train the same kind of thing is a subclass."""

    name: str
    title: str  # on cards
    paper: str  # number on arXiv

    noun: ClassVar[str]  # what it trains, in messages
    settings: ClassVar[tuple[str, ...]]  # parts of `TrainConfig` that it reads beside the common settings
    needs: ClassVar[Mapping[str, str]] = {}  # "draft" or "head", if it must be given -> what it is for
    takes: ClassVar[tuple[str, ...]] = ()  # "draft" or "head", if it may be given
    reports_others: ClassVar[bool] = False  # whether it is evaluated on texts of other domains
    # whether the drafter can be made only when the texts are known
    reads_texts: ClassVar[bool] = False
    reads_marks: ClassVar[bool] = False  # whether it learns from answers in which errors are marked
    grows: ClassVar[bool] = False  # whether it trains on growing parts of the data
    # the sentence "It {promise}." of a card, before its "N parameters{counted}, P % of {whole} M."
    promise: ClassVar[str] = (
        "drafts tokens that the target verifies: the output's distribution stays that of the target"
    )
    counted: ClassVar[str] = ""  # what else is counted among its parameters
    whole: ClassVar[str] = "the target's"

    def defaults(self) -> TrainConfig:
        """The settings if none are given."""
        return TrainConfig()

    def check_start(self, draft: str | None, head: str | None, general: str | None = None) -> None:
        """ConfigError if a draft model or head is missing, or if one, or `general` texts, are given that the
        method does not use."""
        if general is not None and not self.reports_others:
            raise ConfigError(f"{self.name} reports nothing about other domains: leave out general")
        for option, value in (("draft", draft), ("head", head)):
            if value is None and option in self.needs:
                raise ConfigError(f"{self.name} needs {option}: {self.needs[option]}")
            if value is not None and option not in (*self.needs, *self.takes):
                raise ConfigError(f"{self.name} trains {self.noun}: leave out {option}")

    def untrained(
        self, model: Model, config: TrainConfig, examples: Sequence[Example] = (), start: str | None = None
    ) -> Any:
        """What is to be trained, in float32, before training. `examples`: texts to learn from; `start`: name
        or folder of the given draft model or head. ValueError if that does not fit the target."""
        raise NotImplementedError

    def prepared(self, examples: Sequence[Example], model: Model, config: TrainConfig) -> Sequence[Example]:
        """The texts as the drafter learns from them."""
        return examples

    def check_texts(self, examples: Sequence[Example], config: TrainConfig) -> None:
        """DataError if nothing can be learned from any of these texts."""

    def first_run(self, model: Model, config: TrainConfig, start: str | None) -> FirstRun | None:
        """The training of another model before the drafter's; None: there is none."""
        return None

    def lesson(self, drafter: Any, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING) -> Lesson:
        """The lesson of `drafter`, made by `untrained`. The target's LM head is used in float32 and not
        trained."""
        raise NotImplementedError

    def save(self, drafter: Any, folder: Path, model: Model) -> None:
        """Write the trained drafter in bfloat16, if possible in a layout that other engines read."""
        raise NotImplementedError

    def save_prompts(self, examples: Sequence[Example], folder: Path, vocab: int) -> None:
        """Write what is needed of the prompts to choose later among several drafters by a prompt."""

    def described(self, target: str, start: str | None) -> str:
        """What is trained, for a card; `start`: the given draft model or head."""
        return f"{self.noun.removeprefix('a ')} for {target}"

    def weights_read(self, config: Mapping[str, Any]) -> float:
        """Share of the drafter's weights that is read from memory per draft token: 1 unless each position has
        weights of its own. `config`: the settings of the training."""
        return 1.0

    def uses(self, folder: str, target: str, start: str | None) -> list[str]:
        """Arguments of `outpace generate` that use the drafter in the folder."""
        raise NotImplementedError

    def in_vllm(self, config: Mapping[str, Any]) -> Drafting | None:
        """How vLLM drafts with what a run with these settings trained; None: vLLM does not load it."""
        return None


def frozen_head(target: HFTarget) -> nn.Module:
    """A copy of the target's LM head in float32, for losses."""
    return copy.deepcopy(target.head).float().requires_grad_(False)
