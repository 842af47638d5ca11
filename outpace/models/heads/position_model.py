"""A draft head without a KV cache, opened for a target."""

from __future__ import annotations

from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.opened_head import OpenedHead
from outpace.models.heads.position_head import PositionHead
from outpace.models.hf.target import HFTarget
from outpace.models.openvino.compressed_weights import CompressedWeights


class PositionModel(OpenedHead):
    """A head and its prefix layer, if it has one, with forwards and KV caches."""

    def __init__(
        self,
        head: PositionHead,
        *,
        compile: bool = False,  # the forwards of the prefix layer; the head itself runs eagerly
        weights: CompressedWeights | None = None,  # of the prefix layer, by `weights_of_head`
    ) -> None:
        self.head = head
        prefix = head.prefix
        self.prefix = None if prefix is None else HeadModel(prefix, compile=compile, weights=weights)

    @property
    def model(self) -> HFTarget | None:
        """The model of the prefix layer, which has KV caches; None if there is no such layer."""
        return None if self.prefix is None else self.prefix.model
