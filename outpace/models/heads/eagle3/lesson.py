"""How heads of EAGLE-3 learn: on several steps of their own outputs (Li et al. 2025), and further from their
draft trees (GTO, Hu et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.heads.eagle3.head import Eagle3Head, default_taps
from outpace.models.heads.eagle3.kind import KIND
from outpace.models.hf.target import HFTarget
from outpace.models.slim.make import num_layers
from outpace.training.config import ConfigError, Optimizer, TrainConfig
from outpace.training.head_methods import (
    FeatureHeadMethod,
    begun_as_eagle3,
    check_layer_size,
    learning_head,
    of_kind,
)
from outpace.training.lessons.feature_heads import TOKENS
from outpace.training.lessons.group_trees import GroupTreeLesson
from outpace.training.lessons.lesson import Lesson
from outpace.training.method import NOTHING, Beside


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    check_layer_size(KIND.method, target)
    head = Eagle3Head(
        head_config(target, target.vocab if ids is None else len(ids)),
        target.embed,
        default_taps(target.num_layers),
        draft_ids=ids,
        norm_before_residual=config.head.norm_before_residual,
    )
    return begun_as_eagle3(head, target, config.seed, ids)


def _check_trees(target: HFTarget) -> None:
    num_layers(target)
    if target.chains_only:
        raise ConfigError("gto learns from draft trees, and this target scores chains only: use eagle3")


@dataclass(frozen=True, kw_only=True)
class GroupTreeMethod(FeatureHeadMethod):
    """Trains a head further by how much of its draft trees is accepted."""

    settings: ClassVar[tuple[str, ...]] = ("head", "trees")
    needs: ClassVar[Mapping[str, str]] = {"head": "a trained head of EAGLE-3, with which it begins"}

    def lesson(
        self, drafter: DraftHead, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        rows = learning_head(drafter, target)
        return GroupTreeLesson(drafter, rows, self.objective, config.head, target, config.trees)


METHODS = (
    FeatureHeadMethod(
        **of_kind(KIND),
        new=_new,
        check=num_layers,  # refuses layers whose outputs cannot be read
        objective=TOKENS,
    ),
    GroupTreeMethod(
        name="gto",
        title="GTO",
        paper="2509.22134",
        head=KIND.method,
        new=_new,
        check=_check_trees,
        objective=TOKENS,
        optimizer=Optimizer(rate=1e-4),  # 5e-6 in the paper's 60,000 steps
        others=("eagle3",),
    ),
)
