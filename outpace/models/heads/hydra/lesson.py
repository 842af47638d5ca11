"""How heads of Hydra and Hydra++ learn (Ankner et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from outpace.models.heads.hydra.head import HydraHead, prefix_layer
from outpace.models.heads.hydra.kind import KIND
from outpace.models.heads.position_head import PositionHead
from outpace.models.hf.target import HFTarget
from outpace.training.config import Optimizer, TrainConfig
from outpace.training.features import Batch
from outpace.training.head_methods import PositionHeadMethod, begun_as_target, of_kind
from outpace.training.lessons.position_heads import Objective, PositionHeadLesson


class HydraLesson(PositionHeadLesson):
    """The loss of heads of Hydra, with dropout at the inputs of their blocks and LM heads."""

    head: HydraHead

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        with dropout(self.head.dropout, self.settings.dropout, noise):
            return super().forward(batch, noise)


@contextmanager
def dropout(module: nn.Dropout, share: float, noise: torch.Generator) -> Iterator[None]:
    """Context manager in which the module sets this share of its inputs to 0, chosen by `noise`."""
    with torch.random.fork_rng():
        torch.manual_seed(noise.initial_seed())
        module.p = share
        module.train()
        try:
            yield
        finally:
            module.eval()


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> PositionHead:
    settings = config.head
    prefix = prefix_layer(target) if settings.prefix else None
    head = HydraHead(target, settings.num_heads, num_layers=settings.num_layers, prefix=prefix, draft_ids=ids)
    return begun_as_target(head, target, config.seed, ids)


METHODS = (
    PositionHeadMethod(
        **of_kind(KIND),
        new=_new,
        objective=Objective(soft=True, weight=lambda step, settings: 1.0),
        lesson_type=HydraLesson,
        optimizer=Optimizer(decay="cosine", last=0.33, weight_decay=0.1),
        sizes={"num_heads": 4, "num_layers": 4, "dropout": 0.2},  # of Hydra++
        head_per_position=True,
    ),
)
