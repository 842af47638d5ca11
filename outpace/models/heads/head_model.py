"""A draft head with its forwards and KV caches."""

from __future__ import annotations

import copy
from typing import NewType

import torch

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
        self.model = HFTarget(head, compile=compile, hidden=self.state.hidden, weights=weights)
        self._elsewhere: dict[torch.device, HeadModel] = {}

    def on(self, device: torch.device) -> HeadModel:
        """The same head on this device. On another one than its own it is a copy, with a copy of the target's
        embedding and LM head; compressed weights are not copied."""
        own = self.model.device
        if device.type == own.type and (own.type == "cpu" or device.index in (None, own.index)):
            return self
        if device not in self._elsewhere:
            made = copy_on(self.head, device)
            self._elsewhere[device] = HeadModel(made, compile=self.model.compiled is not None)
        return self._elsewhere[device]

    @property
    def state(self) -> Want:
        """The head's outputs that are the next token's feature while drafting, and what its tail and its
        experts read."""
        layers = {self.head.state_layer}
        if self.head.tail_levels:
            layers.add(self.head.tail_layer)
        if self.head.apart_layer is not None:
            layers.add(self.head.apart_layer)
        return Want(hidden=frozenset(layers))


def copy_on(head: DraftHead, device: torch.device) -> DraftHead:
    """A copy of a head on this device, with copies of the modules that it shares with its target."""
    made = copy.deepcopy(head)
    torch.nn.Module.to(made, device)
    return made


# annotation of recipe options: a head of EAGLE, HASS or EAGLE-3
AnyEagleModel = NewType("AnyEagleModel", HeadModel)
