"""A KV cache for one trial forward. It records the shapes of each layer's keys and values, and whether our
attention function received them and our masks unchanged."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outpace.models.eager.own_inputs import OwnInputs, Rule
from outpace.models.forward.kv_cache import PlaneShape


class ProbeMask(Tensor):
    """An attention mask with a reference to the probe, which our attention function uses if it receives the
    mask unchanged."""

    probe: ProbeCache


class ProbeCache(OwnInputs):
    """A KV cache for one trial forward, which returns keys and values unchanged and records its use."""

    def __init__(self, *, tuples: bool = False) -> None:
        # transformers' Cache.__init__ requires layer objects, so it is not called
        self.tuples = tuples  # return keys and values as tuples, as for several rows
        self.shapes: dict[int, tuple[PlaneShape, PlaneShape]] = {}  # layer -> shapes of keys and values
        self._stored: list[Tensor] = []
        self._attended = 0
        self._as_stored = True

    @property
    def takes_masks(self) -> bool:
        """Whether every layer passed our mask to our attention function unchanged."""
        return self._attended >= len(self.shapes) > 0

    @property
    def packs(self) -> bool:
        """Whether keys and values too reach our attention function unchanged, so that they may be tuples with
        one tensor per row."""
        return self.takes_masks and self._as_stored

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Any, Any]:
        first, second = (
            PlaneShape(states.shape[1], states.shape[3], states.dtype, states.device)
            for states in (key_states, value_states)
        )
        self.shapes[layer_idx] = (first, second)
        self._stored += [key_states, value_states]
        return ((key_states,), (value_states,)) if self.tuples else (key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, Any]:
        """Number of keys, and this object as their offset, which transformers passes on to the mask
        function."""
        return query_length, self

    def attention_mask(  # (1, 1, 1, 1)
        self, rule: Rule, reach: int | None, dtype: torch.dtype, device: Any
    ) -> Tensor:
        """An additive mask of zeros, valid for any attention code, with a reference to this cache."""
        mask = torch.zeros(1, 1, 1, 1, dtype=dtype, device=device).as_subclass(ProbeMask)
        mask.probe = self
        return mask

    def attend(self, key: Tensor, value: Tensor) -> None:
        """Record a call of our attention function with our mask and these keys and values."""
        self._attended += 1
        stored = {id(states) for states in self._stored}
        self._as_stored = self._as_stored and id(key) in stored and id(value) in stored
