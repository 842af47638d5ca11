"""How heads of EAGLE-3 learn (Li et al. 2025): on several steps of their own outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.heads.eagle3.head import Eagle3Head, default_taps
from outpace.models.heads.eagle3.kind import KIND
from outpace.models.hf.target import HFTarget
from outpace.models.slim.make import num_layers
from outpace.training.config import TrainConfig
from outpace.training.head_methods import FeatureHeadMethod, begun, check_layer_size, lm_head_rows, of_kind
from outpace.training.lessons.feature_heads import Compared, Objective


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    check_layer_size(KIND.method, target)
    head = Eagle3Head(
        head_config(target, target.vocab if ids is None else len(ids)),
        target.embed,
        default_taps(target.num_layers),
        draft_ids=ids,
        norm_before_residual=config.head.norm_before_residual,
    )
    begun(head, (head.fc, head.layers, head.norm, head.lm_head), target, config.seed)
    with torch.no_grad():  # as in speculators, its LM head begins as a copy of the target's
        next(head.lm_head.parameters()).copy_(lm_head_rows(target, ids))
    return head


METHODS = (
    FeatureHeadMethod(
        **of_kind(KIND),
        new=_new,
        check=num_layers,  # refuses layers whose outputs cannot be read
        objective=Objective(
            num_steps=lambda settings: settings.unroll,
            detached=False,
            noise=False,
            loss=Compared.token_loss,
            weight=lambda step, settings: settings.decay**step,
        ),
    ),
)
