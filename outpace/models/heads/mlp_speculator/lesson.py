"""How MLP speculators learn (Wertheimer et al. 2024)."""

from __future__ import annotations

from torch import Tensor

from outpace.models.heads.mlp_speculator.head import MlpSpeculatorHead
from outpace.models.heads.mlp_speculator.kind import KIND
from outpace.models.heads.position_head import PositionHead, random_parameters
from outpace.models.hf.target import HFTarget
from outpace.training.config import TrainConfig
from outpace.training.head_methods import PositionHeadMethod, in_float32, of_kind
from outpace.training.lessons.position_heads import Objective


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> PositionHead:
    settings = config.head
    inner = settings.inner_size or 2 * int(next(target.embed.parameters()).shape[1])
    head = MlpSpeculatorHead(
        target, settings.num_heads, inner, tied=settings.tied, scale_input=settings.scale_input
    )
    return in_float32(random_parameters(head, config.seed))


METHODS = (
    PositionHeadMethod(
        **of_kind(KIND),
        new=_new,
        objective=Objective(soft=False, weight=lambda step, settings: 1.0),
        sizes={"num_heads": 3},
    ),
)
