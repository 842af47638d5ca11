"""How heads of DFlash learn (Chen et al. 2026): in blocks behind a random part of a text's tokens at once,
the first masks of a block most.

The paper learns the text's tokens; here, as for other heads, it is the target's distributions in their place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from outpace.api.engines import Drafting
from outpace.models.heads.dflash.head import (
    BLOCK_SIZE,
    NUM_LAYERS,
    DFlashHead,
    default_mask,
    default_taps,
)
from outpace.models.heads.dflash.kind import KIND
from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.hf.target import HFTarget
from outpace.training.config import Head, TrainConfig
from outpace.training.features import Batch
from outpace.training.head_methods import HeadMethod, begun, check_layer_size, learning_head, of_kind
from outpace.training.lessons.feature_heads import Compared, FeatureHeadLesson, Objective
from outpace.training.lessons.lesson import Lesson
from outpace.training.method import NOTHING, Beside
from outpace.training.packed_blocks import packed_blocks

NUM_BLOCKS = 48  # of a text in one step, on average


def weight_of(step: int, settings: Head) -> float:
    """The weight of draft token `step`: it falls to 1 / e over half a block, as in the paper for blocks of 8
    and about so for its others."""
    return math.exp(-step / ((settings.num_heads + 1) / 2))


OBJECTIVE = Objective(
    num_steps=lambda settings: settings.num_heads,
    detached=False,
    noise=False,
    loss=Compared.token_loss,
    weight=weight_of,
    run=packed_blocks,
)


class BlockLesson(FeatureHeadLesson):
    """The loss of a head that reads two-way blocks."""

    objective = OBJECTIVE

    def __init__(self, head: DraftHead, target_head: nn.Module, settings: Head) -> None:
        super().__init__(head, target_head, self.objective, settings)
        self.num_steps = self.max_depth = head.block_levels
        self._chosen: Tensor | None = None  # (R, C) bool, the columns of this step; None: all

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        possible = super().columns(batch)
        share = min(1.0, NUM_BLOCKS / max(1.0, possible.sum().item() / len(possible)))
        self._chosen = torch.rand(possible.shape, generator=noise).to(possible.device) < share
        try:
            return super().forward(batch, noise)
        finally:
            self._chosen = None

    def columns(self, batch: Batch) -> Tensor:
        columns = super().columns(batch)
        return columns if self._chosen is None else columns & self._chosen


@dataclass(frozen=True, kw_only=True)
class BlockHeadMethod(HeadMethod):
    """Trains a head that reads two-way blocks."""

    lesson_type: type[BlockLesson] = BlockLesson

    def lesson(
        self, drafter: DraftHead, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        return self.lesson_type(drafter, learning_head(drafter, target), config.head)

    def in_vllm(self, config: Mapping[str, Any]) -> Drafting | None:
        found = super().in_vllm(config)
        return found and replace(found, num_tokens=config["head"]["num_heads"])


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    check_layer_size(KIND.method, target)
    layers = head_config(target, target.vocab, config.head.num_layers)
    head = DFlashHead(
        layers,
        target.embed,
        target.head,
        default_taps(target.num_layers, config.head.num_layers),
        mask_token=default_mask(target.vocab),
        num_masks=config.head.num_heads,
    )
    return begun(head, (head.fc, head.hidden_norm, head.layers, head.norm), target, config.seed)


METHODS = (
    BlockHeadMethod(
        **of_kind(KIND),
        new=_new,
        sizes={"num_heads": BLOCK_SIZE - 1, "num_layers": NUM_LAYERS},
        others=("ddtree",),
    ),
)
