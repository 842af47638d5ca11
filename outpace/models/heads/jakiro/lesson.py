"""How heads of Jakiro learn (Huang et al. 2025): as those of EAGLE, in both outputs."""

from __future__ import annotations

from torch import Tensor

from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.heads.jakiro.head import JakiroHead
from outpace.models.heads.jakiro.kind import KIND
from outpace.models.hf.target import HFTarget
from outpace.training.config import Optimizer, TrainConfig
from outpace.training.head_methods import FeatureHeadMethod, begun, of_kind
from outpace.training.lessons.feature_heads import Objective, features_and_tokens
from outpace.training.with_tail import with_tail


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    head = JakiroHead(head_config(target, target.vocab), target.embed, target.head, bias=False)
    return begun(head, (head.fc, head.layers, head.norm), target, config.seed)


METHODS = (
    FeatureHeadMethod(
        **of_kind(KIND),
        new=_new,
        objective=Objective(
            num_steps=lambda settings: 2,
            detached=False,
            noise=True,
            loss=features_and_tokens,
            weight=lambda step, settings: 0.5**step,
            run=with_tail,
        ),
        optimizer=Optimizer(clip_by="value", weight_decay=1e-3, decay="cosine"),
    ),
)
