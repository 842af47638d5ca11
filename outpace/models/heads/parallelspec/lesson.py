"""How heads of ParallelSpec learn (Xiao et al. 2024): from the target's distributions, in masks behind every
token of a text at once."""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.heads.parallelspec.head import ParallelSpecHead, draw_masks
from outpace.models.heads.parallelspec.kind import KIND
from outpace.models.hf.target import HFTarget
from outpace.training.config import Optimizer, TrainConfig
from outpace.training.head_methods import FeatureHeadMethod, begun, of_kind
from outpace.training.lessons.feature_heads import Compared, Objective
from outpace.training.packed import packed


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    layers = head_config(target, target.vocab, config.head.num_layers)
    masks = config.head.num_heads - 1  # the first token is drafted without one
    head = ParallelSpecHead(layers, target.embed, target.head, num_masks=masks, bias=False)
    for mask in (head.mask_embeddings, head.mask_feature):
        mask.data = mask.data.to(target.device, torch.float32)
    draw_masks(head, config.seed)
    return begun(head, (head.fc, head.layers), target, config.seed)


METHODS = (
    FeatureHeadMethod(
        **of_kind(KIND),
        new=_new,
        objective=Objective(
            num_steps=lambda settings: settings.num_heads,
            detached=False,
            noise=True,
            loss=Compared.token_loss,
            weight=lambda step, settings: 1.0,
            run=packed,
        ),
        optimizer=Optimizer(clip_by="value"),
    ),
)
