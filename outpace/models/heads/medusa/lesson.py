"""How heads of Medusa learn (Cai et al. 2024)."""

from __future__ import annotations

from torch import Tensor

from outpace.models.heads.medusa.head import MedusaHead
from outpace.models.heads.medusa.kind import KIND
from outpace.models.heads.position_head import PositionHead
from outpace.models.hf.target import HFTarget
from outpace.training.config import Optimizer, TrainConfig
from outpace.training.head_methods import PositionHeadMethod, begun_as_target, of_kind
from outpace.training.lessons.position_heads import Objective


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> PositionHead:
    settings = config.head
    head = MedusaHead(target, settings.num_heads, num_layers=settings.num_layers, draft_ids=ids)
    return begun_as_target(head, target, config.seed, ids)


METHODS = (
    PositionHeadMethod(
        **of_kind(KIND),
        new=_new,
        objective=Objective(soft=False, weight=lambda step, settings: settings.decay ** (step + 1)),
        optimizer=Optimizer(decay="cosine"),
        head_per_position=True,
    ),
)
