"""A draft head whose own weights can be exchanged while it is in use."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.low_rank import RUNS_EAGERLY


class LearningHead:
    """A copy of a head, which shares with it what both have of the target. The given head stays as it is.

    `weights` holds the head's own parameters without its embedding, at least float32; they are replaced,
    never written to. Memory: the head once more, and `weights` where they have another dtype. The copy runs
    eagerly, also of a compiled head, and warns of that."""

    def __init__(self, opened: HeadModel) -> None:
        if opened.model.compiled is not None:
            warnings.warn(RUNS_EAGERLY.format("head"), stacklevel=2)
        self._active, head = [self], opened.head  # whose weights the network has; shared by all copies
        shared = [head.get_submodule(name.removesuffix(".")) for name in head.from_target]
        with torch.inference_mode(False), torch.no_grad():
            made = copy.deepcopy(head, {id(module): module for module in shared})
            self.network = HeadNetwork(made)
            self.weights = tuple([_at_least_float32(each) for each in self.network.own.values()])
        self.opened = HeadModel(made)

    def __deepcopy__(self, memo: dict[int, Any]) -> LearningHead:
        """Weights of its own for the same network."""
        memo[id(self.opened)], memo[id(self.network)] = self.opened, self.network
        return copy.copy(self)

    def use(self, weights: tuple[Tensor, ...]) -> None:
        """Give the head these weights."""
        self.weights, self._active[0] = weights, self
        with torch.inference_mode(False):
            for parameter, weight in zip(self.network.own.values(), weights, strict=True):
                parameter.data = weight.to(parameter.dtype)

    def activate(self) -> None:
        """Give the network these weights in place of those of another copy."""
        if self._active[0] is not self:
            self.use(self.weights)


def _at_least_float32(weight: Tensor) -> Tensor:
    """A copy of a weight, in float32 unless its own type is wider."""
    return weight.detach().to(torch.promote_types(torch.float32, weight.dtype), copy=True)


class HeadNetwork:
    """Computes a head with other weights than its own, with a gradient for these."""

    def __init__(self, head: DraftHead) -> None:
        names = [name for name in head.own if not name.startswith("embed_tokens.")]
        self.own = {name: head.own[name] for name in names}  # the parameters that learn
        self._reading = _Reading(head)

    def run(self, weights: tuple[Tensor, ...], reading: Callable[[DraftHead], Tensor]) -> Tensor:
        """What `reading` returns for the head with these weights."""
        named = zip(self.own.items(), weights, strict=True)
        given = {f"head.{name}": weight.to(own.dtype) for (name, own), weight in named}
        return torch.func.functional_call(self._reading, given, (reading,))


class _Reading(nn.Module):
    """Lets `functional_call` run more of a head than its forward."""

    def __init__(self, head: DraftHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, reading: Callable[[DraftHead], Tensor]) -> Tensor:
        return reading(self.head)
