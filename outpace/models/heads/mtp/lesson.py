"""How heads for `mtp` learn: from the target's distributions, on several steps of their own outputs."""

from __future__ import annotations

from torch import Tensor

from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.mtp.head import MtpHead, llama_layer
from outpace.models.heads.mtp.kind import KIND
from outpace.models.hf.target import HFTarget
from outpace.training.config import TrainConfig
from outpace.training.head_methods import FeatureHeadMethod, begun, of_kind
from outpace.training.lessons.feature_heads import TOKENS


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    own, layer = llama_layer(target)
    head = MtpHead(own, target.embed, target.head, layer)
    return begun(head, (head.layers,), target, config.seed)


METHODS = (
    FeatureHeadMethod(
        **of_kind(KIND),
        new=_new,
        objective=TOKENS,
    ),
)
