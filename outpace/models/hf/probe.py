"""One token through a model, to learn what its layers store and how freely its attention may be laid out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from outpace.models.hf.kv_cache import PlaneShape


class Marked(Tensor):
    """A mask that our attention function knows again, if the model hands it on untouched."""

    probe: Probe


class Probe(Cache):
    """A cache that stores nothing and takes notes."""

    layers: list[Any] = []
    is_sliding: list[bool] = []
    is_linear: list[bool] = []
    is_dummy: list[bool] = []

    def __init__(self, *, tuples: bool = False) -> None:
        # the parent's __init__ demands layer objects
        self.tuples = tuples  # hand keys and values out as several rows' would be
        self.shapes: dict[int, tuple[PlaneShape, PlaneShape]] = {}  # layer -> of its keys and values
        self._stored: list[Tensor] = []
        self._attended = 0
        self._as_stored = True

    @property
    def takes_masks(self) -> bool:
        """Every layer handed our mask object to our attention function untouched."""
        return self._attended >= len(self.shapes) > 0

    @property
    def packs(self) -> bool:
        """Besides, keys and values reach attention as the cache returned them: several rows' may travel in a
        tuple."""
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

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, Any]:
        """One key, and in place of its offset this object: it reaches the mask function unchanged."""
        return query_length, self

    def mask(self, dtype: torch.dtype, device: Any) -> Tensor:  # (1, 1, 1, 1)
        """A mask that any attention can add, marked so that ours knows it again."""
        mask = torch.zeros(1, 1, 1, 1, dtype=dtype, device=device).as_subclass(Marked)
        mask.probe = self
        return mask

    def attend(self, key: Tensor, value: Tensor) -> None:
        """Noted by our attention function, when it was given our mask."""
        self._attended += 1
        stored = {id(states) for states in self._stored}
        self._as_stored = self._as_stored and id(key) in stored and id(value) in stored
