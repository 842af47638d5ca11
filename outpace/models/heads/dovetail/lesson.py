"""How heads of Dovetail learn (Zhang et al. 2025): as those of EAGLE."""

from __future__ import annotations

from torch import Tensor

from outpace.models.heads.dovetail.head import NUM_LAYERS, DovetailHead
from outpace.models.heads.dovetail.kind import KIND
from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.hf.target import HFTarget
from outpace.training.config import Optimizer, TrainConfig
from outpace.training.head_methods import FeatureHeadMethod, begun, of_kind
from outpace.training.lessons.feature_heads import EAGLE


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    layers = head_config(target, target.vocab, config.head.num_layers)
    head = DovetailHead(layers, target.embed, target.head)
    return begun(head, (head.fusion, head.layers), target, config.seed)


METHODS = (
    FeatureHeadMethod(
        **of_kind(KIND),
        new=_new,
        objective=EAGLE,
        optimizer=Optimizer(clip_by="value"),
        sizes={"num_layers": NUM_LAYERS},
    ),
)
