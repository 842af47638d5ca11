"""A draft head with its forwards and KV caches."""

from __future__ import annotations

from typing import NewType

from outpace.core.contracts import Want
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.opened_head import OpenedHead
from outpace.models.hf.target import HFTarget
from outpace.models.openvino.compressed_weights import CompressedWeights


class HeadModel(OpenedHead):
    """A head that runs like any draft model, with trees, batches, gaps and compiled forwards; features are
    passed as the argument `features` of `HFTarget.score`."""

    def __init__(
        self,
        head: DraftHead,
        *,
        compile: bool = False,
        weights: CompressedWeights | None = None,  # for compiled forwards, by `weights_of_head`
    ) -> None:
        self.head = head
        hidden = frozenset({head.state_layer})
        self.model = HFTarget(head, compile=compile, hidden=hidden, weights=weights)

    @property
    def state(self) -> Want:
        """The head's output that is the next token's feature while drafting."""
        return Want(hidden=frozenset({self.head.state_layer}))


# annotation of recipe options: a head of EAGLE, HASS or EAGLE-3
AnyEagleModel = NewType("AnyEagleModel", HeadModel)
