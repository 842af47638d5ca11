"""A draft head without a KV cache, opened for a target."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.hydra import HydraHead
from outpace.models.heads.position_head import PositionHead


class PositionModel:
    """A head and, of Hydra++, its prefix layer with forwards and KV caches."""

    def __init__(self, head: PositionHead, *, compile: bool = False) -> None:
        self.head = head
        layer = head.prefix if isinstance(head, HydraHead) else None
        self.prefix = None if layer is None else HeadModel(layer, compile=compile)


# annotations of recipe options
MedusaModel = NewType("MedusaModel", PositionModel)
HydraModel = NewType("HydraModel", PositionModel)
MlpSpeculatorModel = NewType("MlpSpeculatorModel", PositionModel)
ReDrafterModel = NewType("ReDrafterModel", PositionModel)
