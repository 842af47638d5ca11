"""How heads of P-EAGLE learn (Hui et al. 2026): from the target's distributions, in masks behind every token
of a text."""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.heads.eagle3.head import default_taps
from outpace.models.heads.p_eagle.head import PEagleHead, draw_mask
from outpace.models.heads.p_eagle.kind import KIND
from outpace.models.hf.target import HFTarget
from outpace.models.slim.make import num_layers
from outpace.training.config import TrainConfig
from outpace.training.head_methods import FeatureHeadMethod, begun_as_eagle3, check_layer_size, of_kind
from outpace.training.lessons.feature_heads import TOKENS_IN_MASKS


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    check_layer_size(KIND.method, target)
    head = PEagleHead(
        head_config(target, target.vocab if ids is None else len(ids), config.head.num_layers),
        target.embed,
        default_taps(target.num_layers),
        mask_token=target.vocab - 1,
        draft_ids=ids,
        norm_before_residual=config.head.norm_before_residual,
    )
    head.mask_hidden.data = head.mask_hidden.data.to(target.device, torch.float32)
    draw_mask(head, config.seed)
    return begun_as_eagle3(head, target, config.seed, ids)


METHODS = (
    FeatureHeadMethod(
        **of_kind(KIND),
        new=_new,
        check=num_layers,  # refuses layers whose outputs cannot be read
        objective=TOKENS_IN_MASKS,
    ),
)
