"""A draft head with its forwards and KV caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import NewType

import torch

from outpace.core.contracts import TargetWithLayers, Want
from outpace.models.heads.draft_head import DraftHead, head_config, random_weights
from outpace.models.heads.eagle import EagleHead
from outpace.models.heads.eagle3 import Eagle3Head, default_taps
from outpace.models.heads.kangaroo import KangarooHead, default_early_layers
from outpace.models.heads.opened_head import OpenedHead
from outpace.models.hf.target import HFTarget
from outpace.models.openvino.compressed_weights import CompressedWeights


class HeadModel(OpenedHead):
    """A head that runs like a draft model: trees, batches, gaps and compiled forwards as for any model, with
    the argument `features` of `HFTarget.score`."""

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
        """The output that is the feature of the next token while drafting."""
        return Want(hidden=frozenset({self.head.state_layer}))


# annotations of recipe options
EagleModel = NewType("EagleModel", HeadModel)
Eagle3Model = NewType("Eagle3Model", HeadModel)
AnyEagleModel = NewType("AnyEagleModel", HeadModel)  # of EAGLE, HASS or EAGLE-3
KangarooModel = NewType("KangarooModel", HeadModel)

Untrained = Callable[[TargetWithLayers, int], DraftHead]


def untrained_eagle(target: TargetWithLayers, seed: int = 0, num_layers: int = 1) -> DraftHead:
    """A head of EAGLE for a target with random weights."""
    head = EagleHead(head_config(target, target.vocab, num_layers), target.embed, target.head)
    return _initialised(head, target, seed, (head.fc, head.layers))


def untrained_eagle3(target: TargetWithLayers, seed: int = 0) -> DraftHead:
    """A head of EAGLE-3 for a target with random weights, and the whole vocabulary as draft vocabulary."""
    taps = default_taps(target.num_layers)
    head = Eagle3Head(head_config(target, target.vocab), target.embed, taps)
    return _initialised(head, target, seed, (head.fc, head.layers, head.lm_head))


def untrained_kangaroo(target: TargetWithLayers, seed: int = 0) -> DraftHead:
    """An adapter of Kangaroo for a target with random weights. ValueError for a target of one layer."""
    if target.num_layers < 2:
        raise ValueError("a target of one layer has no early exit: use a draft model")
    early = default_early_layers(target.num_layers)
    head = KangarooHead(head_config(target, target.vocab), target.embed, target.head, early)
    return _initialised(head, target, seed, (head.layers,))


def _initialised(
    head: DraftHead, target: TargetWithLayers, seed: int, own: tuple[torch.nn.Module, ...]
) -> DraftHead:
    weight = next(target.embed.parameters())
    for module in own:
        module.to(weight)
    for module in (head.norm, head.rotary_emb):
        module.to(weight.device)
    head.norm.to(weight)
    random_weights(seed, own)
    return head.eval()
