"""The method that trains a target together with heads that complete fragments of its texts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from outpace.api.model import Model
from outpace.models.fragment_token import KEY
from outpace.models.heads.formats.folder import save_head
from outpace.models.heads.medusa.head import MedusaHead
from outpace.models.hf.target import HFTarget
from outpace.training.config import ConfigError, Optimizer, TrainConfig
from outpace.training.draft_model import save_model
from outpace.training.fragments import with_fragments
from outpace.training.head_methods import begun_as_target
from outpace.training.lessons.fragments import FragmentLesson, TunedTarget
from outpace.training.lessons.lesson import Lesson
from outpace.training.method import NOTHING, STORED, Beside, TrainingMethod
from outpace.training.texts import Example

HEADS = "heads"  # folder of the heads, in that of the target


@dataclass(frozen=True, kw_only=True)
class FragmentMethod(TrainingMethod):
    """Trains the target itself, and heads of Medusa for it, on texts with a token behind every fragment."""

    noun: ClassVar[str] = "the target itself, and its heads"
    settings: ClassVar[tuple[str, ...]] = ("head", "fragments")
    promise: ClassVar[str] = (
        "writes a token behind every fragment of a program, and has heads that complete fragments: the "
        "output's distribution is its own, not that of the model before"
    )
    counted: ClassVar[str] = " of its heads"

    def defaults(self) -> TrainConfig:
        return TrainConfig(optimizer=Optimizer(rate=3e-4))

    def untrained(
        self, model: Model, config: TrainConfig, examples: Sequence[Example] = (), start: str | None = None
    ) -> TunedTarget:
        whole: Any = copy.deepcopy(model.target.model).float()
        setattr(whole.config.get_text_config(), KEY, marker(model, config))
        target = HFTarget(whole.requires_grad_(True))
        head = MedusaHead(target, config.head.num_heads, num_layers=config.head.num_layers)
        begun_as_target(head, target, config.seed, None)
        return TunedTarget(whole, target, head)

    def prepared(self, examples: Sequence[Example], model: Model, config: TrainConfig) -> list[Example]:
        token = marker(model, config)
        return [with_fragments(example, model.tokenizer, token) for example in examples]

    def lesson(
        self, drafter: TunedTarget, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        token = getattr(drafter.model.config.get_text_config(), KEY)
        return FragmentLesson(drafter, config.head, token, config.fragments.weight)

    def save(self, drafter: TunedTarget, folder: Path, model: Model) -> None:
        token, tokenizer = (
            getattr(drafter.model.config.get_text_config(), KEY),
            copy.deepcopy(model.tokenizer),
        )
        if tokenizer is not None:  # so that texts are shown without it
            tokenizer.add_tokens([tokenizer.convert_ids_to_tokens(token)], special_tokens=True)
        save_model(drafter.model, folder, replace(model, tokenizer=tokenizer))
        for parameter in drafter.head.own.values():
            parameter.data = parameter.data.to(STORED)
        save_head(drafter.head, folder / HEADS, drafter.target, name=str(folder))

    def described(self, target: str, start: str | None) -> str:
        return f"model with heads for whole fragments, made from {target}"

    def uses(self, folder: str, target: str, start: str | None) -> list[str]:
        return [f"--target {folder} --method {self.name} --head {folder}/{HEADS}"]


METHODS = (FragmentMethod(name="syntax-aligned-medusa", title="syntax-aligned Medusa", paper="2503.14153"),)


def marker(model: Model, config: TrainConfig) -> int:
    """The token that ends a fragment. ConfigError if the target lacks it, or no tokenizer is known."""
    if model.tokenizer is None:
        raise ConfigError("the target's tokenizer is unknown, and programs are read as text: give it by name")
    token, vocab = config.fragments.token, model.target.vocab
    if token >= vocab:
        raise ConfigError(
            f"fragments.token is {token}: give a token from 0 to {vocab - 1}, or -1 for the last"
        )
    return token if token >= 0 else vocab - 1
