"""The methods of `outpace train`: what each of them trains, its settings, and what it begins with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from outpace.models.predictors.draft_distribution_predictor import DraftDistributionPredictor
from outpace.models.predictors.draft_length_predictor import DraftLengthPredictor
from outpace.models.predictors.hidden_state_predictor import HiddenStatePredictor
from outpace.training.config import ConfigError, Optimizer, TrainConfig
from outpace.training.lessons import feature_heads, position_heads
from outpace.training.lessons.draft_models import (
    AlignmentLesson,
    DraftModelLesson,
    FilteredLesson,
    SequenceLesson,
    offline_lesson,
)

FEATURE_HEADS, POSITION_HEADS = feature_heads.OBJECTIVES, position_heads.OBJECTIVES
# sizes of the papers' heads, where they are not those of `config.Head`; Hydra's are those of Hydra++
SIZES: Mapping[str, Mapping[str, int]] = {
    "hydra": {"num_heads": 4, "num_layers": 4},
    "mlp-speculator": {"num_heads": 3},
    "redrafter": {"num_layers": 2},
}
DRAFT_MODELS: Mapping[str, Callable[..., DraftModelLesson]] = {
    "distillspec": DraftModelLesson,
    "adaspec": FilteredLesson,
    "direct-alignment": AlignmentLesson,
    "fastdraft": SequenceLesson,
    "multilingual-drafter": SequenceLesson,
    "domain-drafter": offline_lesson,
}
GROWING = ("domain-drafter",)  # on growing parts of the data
ROUTED = ("multilingual-drafter",)  # draft models that are chosen by prompts like those they learned from
PREDICTORS = (HiddenStatePredictor.method, DraftDistributionPredictor.method)
EXIT_MODELS = ("s2d",)  # they train a draft model with several exits
ADAPTERS = ("kangaroo",)  # they train a head behind the target's first layers
LENGTH_PREDICTORS = (DraftLengthPredictor.method,)
EXIT_PREDICTORS = ("specee",)  # they train a predictor of early exits, for a target and a head
TARGETS = ("layerskip",)  # they train the target itself
METHODS = (
    *FEATURE_HEADS,
    *POSITION_HEADS,
    *ADAPTERS,
    *DRAFT_MODELS,
    *EXIT_MODELS,
    *PREDICTORS,
    *LENGTH_PREDICTORS,
    *EXIT_PREDICTORS,
    *TARGETS,
)


def defaults(method: str) -> TrainConfig:
    """The settings of a method. ConfigError if there is none of this name."""
    if method not in METHODS:
        raise ConfigError(f"{method} has no drafter to train: use {', '.join(METHODS)}")
    config = TrainConfig()
    if method in POSITION_HEADS:  # engines that read their layouts expect the whole vocabulary
        return replace(config, head=replace(config.head, draft_vocab=0, **SIZES.get(method, {})))
    if method == DraftDistributionPredictor.method:  # its few weights learn slowly at the rate of heads
        return replace(config, optimizer=replace(config.optimizer, rate=1e-2))
    if method in LENGTH_PREDICTORS:  # it learns what greedy decoding accepts
        answers = replace(config.answers, temperatures=(0.0,))
        return replace(config, answers=answers, predictor=replace(config.predictor, depth=10))
    if method in EXIT_PREDICTORS:
        return replace(config, predictor=replace(config.predictor, width=512))
    if method not in (*DRAFT_MODELS, *EXIT_MODELS, *TARGETS):
        return config
    # a model that has learned something already
    config = replace(config, optimizer=Optimizer(rate=3e-4))
    if method == "direct-alignment":
        answers = replace(config.answers, temperatures=(0.0, 0.3, 0.7, 1.0), top_p=0.95)
        return replace(config, answers=answers)
    if method == "multilingual-drafter":
        return replace(config, answers=replace(config.answers, temperatures=(0.0, 0.3, 0.7, 1.0)))
    return config


def setting_parts(method: str) -> frozenset[str]:
    """Names of the parts of a method's settings that it reads."""
    found = {"answers", "capture", "optimizer"}
    if method in GROWING:
        found.add("growth")
    if method in DRAFT_MODELS:
        found.add("distillation")
    elif method in (*PREDICTORS, *LENGTH_PREDICTORS, *EXIT_PREDICTORS):
        found.add("predictor")
    elif method in (*EXIT_MODELS, *ADAPTERS, *TARGETS):
        found.add("exits")
    else:
        found.add("head")
    return frozenset(found)


def check_start(method: str, draft: str | None, head: str | None, general: str | None = None) -> None:
    """ConfigError if a draft model is missing, or if a method that trains heads is given a draft model, or
    the other way round, or if one that reports no forgetting is given texts of other domains."""
    if general is not None and method not in GROWING:
        raise ConfigError(f"{method} reports nothing about other domains: leave out general")
    if method in PREDICTORS:
        if draft is None:
            raise ConfigError(f"{method} needs draft: the model whose tokens it learns to judge")
        if head is not None:
            raise ConfigError(f"{method} trains a predictor: leave out head")
        return
    if method in LENGTH_PREDICTORS:
        if head is None:
            raise ConfigError(f"{method} needs head: the head whose draft lengths it learns")
        if draft is not None:
            raise ConfigError(f"{method} trains a predictor for a head: leave out draft")
        return
    if method in EXIT_PREDICTORS and (head is None or draft is not None):
        raise ConfigError(f"{method} needs head, a folder with a head of EAGLE for the target, and no draft")
    if method in TARGETS and (draft is not None or head is not None):
        raise ConfigError(f"{method} trains the target itself: leave out draft and head")
    trains_draft = method in (*DRAFT_MODELS, *EXIT_MODELS)
    if draft is None and trains_draft and method != "fastdraft":
        raise ConfigError(f"{method} needs draft: the model to train")
    if draft is not None and not trains_draft:
        raise ConfigError(f"{method} trains a head: leave out draft")
    if head is not None and trains_draft:
        raise ConfigError(f"{method} trains a draft model: leave out head")
