"""How heads of Chimera learn (Zeng et al. 2024): the target's tokens, and its hidden states."""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.models.heads.chimera.head import ChimeraHead
from outpace.models.heads.chimera.kind import KIND
from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.hf.target import HFTarget
from outpace.training import losses
from outpace.training.config import Head, Optimizer, TrainConfig
from outpace.training.head_methods import FeatureHeadMethod, begun, check_layer_size, lm_head_rows, of_kind
from outpace.training.lessons.feature_heads import Compared, Objective


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    check_layer_size(KIND.method, target)
    head = ChimeraHead(head_config(target, target.vocab), target.embed)
    begun(head, (head.layers, head.trigram, head.lm_head), target, config.seed)
    with torch.no_grad():
        next(head.lm_head.parameters()).copy_(lm_head_rows(target, None).repeat(1, 2))
        for weight in head.trigram.block.parameters():
            weight.zero_()
    return head


def _tokens_and_states(one: Compared, settings: Head) -> Tensor:
    """The loss of tokens, and the mean square of the distance between the layer's outputs and the target's
    hidden states."""
    outputs = one.features[:, : one.target_features.shape[1]]
    distance = losses.mean_square(outputs, one.target_features, one.mask)
    return one.token_loss(settings) + settings.feature_weight * distance


METHODS = (
    FeatureHeadMethod(
        **of_kind(KIND),
        new=_new,
        objective=Objective(
            num_steps=lambda settings: settings.unroll,
            detached=False,
            noise=False,
            loss=_tokens_and_states,
            weight=lambda step, settings: 1.0,
        ),
        optimizer=Optimizer(decay="cosine"),
    ),
)
