"""How heads of Gumiho learn (Li et al. 2025): as those of EAGLE, the first two tokens from its layers and the
further ones from its MLPs."""

from __future__ import annotations

from torch import Tensor

from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.heads.gumiho.head import NUM_LAYERS, GumihoHead
from outpace.models.heads.gumiho.kind import KIND
from outpace.models.hf.target import HFTarget
from outpace.training.config import Optimizer, TrainConfig
from outpace.training.head_methods import FeatureHeadMethod, begun, of_kind
from outpace.training.lessons.feature_heads import Objective, features_and_tokens
from outpace.training.with_tail import with_tail

SERIAL = 2  # draft tokens from the layers, whose outputs the MLPs read


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    layers = head_config(target, target.vocab, config.head.num_layers)
    mlps = config.head.num_heads
    head = GumihoHead(layers, target.embed, target.head, num_mlps=mlps, bias=False)
    return begun(head, (head.fc, head.layers, head.mlps), target, config.seed)


METHODS = (
    FeatureHeadMethod(
        **of_kind(KIND),
        new=_new,
        objective=Objective(
            num_steps=lambda settings: SERIAL + settings.num_heads,
            detached=False,
            noise=True,
            loss=features_and_tokens,
            weight=lambda step, settings: 1.0 if step < SERIAL else 1 / 9,
            run=with_tail,
        ),
        optimizer=Optimizer(clip_by="value"),
        sizes={"num_layers": NUM_LAYERS},
    ),
)
