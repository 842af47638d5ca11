"""How heads of EAGLE learn: as in EAGLE (Li et al. 2024) or as in HASS (Zhang et al. 2024)."""

from __future__ import annotations

from torch import Tensor

from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.heads.eagle.head import EagleHead
from outpace.models.heads.eagle.kind import KIND
from outpace.models.hf.target import HFTarget
from outpace.training.config import Optimizer, TrainConfig
from outpace.training.head_methods import FeatureHeadMethod, begun, of_kind
from outpace.training.lessons.feature_heads import EAGLE, HASS


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    layers = head_config(target, target.vocab, config.head.num_layers)
    head = EagleHead(layers, target.embed, target.head, bias=False)
    return begun(head, (head.fc, head.layers), target, config.seed)


METHODS = (
    FeatureHeadMethod(
        **of_kind(KIND),
        new=_new,
        objective=EAGLE,
        optimizer=Optimizer(clip_by="value"),
        others=("eagle2",),
    ),
    FeatureHeadMethod(
        name="hass",
        title="HASS",
        paper="2408.15766",
        head=KIND.method,
        new=_new,
        objective=HASS,
        optimizer=Optimizer(clip_by="value"),
        others=("eagle2",),
    ),
)
