"""How heads of S4C learn (He et al. 2025): the target's distribution, and head 1 its hidden states too."""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.models.heads.position_head import PositionHead
from outpace.models.heads.s4c.head import NUM_HEADS, S4CHead, first_layer
from outpace.models.heads.s4c.kind import KIND
from outpace.models.hf.target import HFTarget
from outpace.training import losses
from outpace.training.config import TrainConfig
from outpace.training.features import Batch
from outpace.training.head_methods import PositionHeadMethod, begun_as_target, check_layer_size, of_kind
from outpace.training.lessons.lesson import following
from outpace.training.lessons.position_heads import Objective, PositionHeadLesson


class S4CLesson(PositionHeadLesson):
    """The loss of all heads' tokens, each further one with less weight, and the distance between the outputs
    of head 1 and the target's hidden states at the same tokens."""

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        states = self.begun(batch)
        true = self.at_columns(following(batch.hidden[-1], 1), batch).to(states)
        distance = losses.smooth_l1(states, true, self.learned(batch, 0))
        return self.token_loss(batch, states) + self.settings.feature_weight * distance


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> PositionHead:
    check_layer_size(KIND.method, target)
    head = S4CHead(target, config.head.num_heads, first_layer(target))
    return begun_as_target(head, target, config.seed, None)


METHODS = (
    PositionHeadMethod(
        **of_kind(KIND),
        new=_new,
        objective=Objective(soft=True, weight=lambda step, settings: settings.decay**step),
        lesson_type=S4CLesson,
        sizes={"num_heads": NUM_HEADS},
        head_per_position=True,
    ),
)
