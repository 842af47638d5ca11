"""How recurrent drafters learn (Cheng et al. 2024)."""

from __future__ import annotations

from torch import Tensor

from outpace.models.heads.position_head import PositionHead
from outpace.models.heads.redrafter.head import ReDrafterHead
from outpace.models.heads.redrafter.kind import KIND
from outpace.models.hf.target import HFTarget
from outpace.training.config import TrainConfig
from outpace.training.head_methods import PositionHeadMethod, begun_as_target, of_kind
from outpace.training.lessons.position_heads import Objective


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> PositionHead:
    head = ReDrafterHead(target, num_layers=config.head.num_layers, draft_ids=ids)
    return begun_as_target(head, target, config.seed, ids)


METHODS = (
    PositionHeadMethod(
        **of_kind(KIND),
        new=_new,
        objective=Objective(soft=False, weight=lambda step, settings: 1.0),
        sizes={"num_layers": 2},
    ),
)
