"""Inputs, keys and values on memory that stays where it is, as forwards need them that are recorded and
replayed.

Letters: S slots, n tokens of each, T places of each, P planes, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import finalize

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from outpace.models.hf.forward_inputs import ForwardInputs, RowInputs, RowMask
from outpace.models.hf.kv_cache import Planes, SlotCache

LEAST = 256  # places of the smallest cache; every other has twice as many as the one before

Storages = list[Tensor]
Rule = Callable[..., Tensor]


class Pool:
    """Memory of caches that are no longer used."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, int], list[Storages]] = {}  # by slots and places

    def take(self, slots: int, places: int) -> Storages | None:
        """Memory of this size, if there is some."""
        free = self._free.get((slots, places))
        return free.pop() if free else None

    def give(self, slots: int, places: int, storages: Storages) -> None:
        """Take memory back."""
        self._free.setdefault((slots, places), []).append(storages)


class FixedCache(SlotCache):
    """A `SlotCache` on memory that outlives it, with one place more for what nobody sees."""

    def __init__(self, pool: Pool, planes: Planes, slots: int, capacity: int, device: torch.device) -> None:
        self._pool = pool
        super().__init__(planes, slots, capacity, device)

    def _allocate(self, capacity: int) -> None:
        places = LEAST
        while places <= capacity:
            places *= 2
        super()._allocate(places)
        self.capacity = places - 1

    def _memory(self, capacity: int) -> Storages:
        slots = len(self.lengths)
        storages = self._pool.take(slots, capacity) or super()._memory(capacity)
        finalize(self, self._pool.give, slots, capacity, storages)
        return storages


@dataclass(eq=False)
class Fixed(Cache):
    """What one size of forward reads, where it stays: the cache as the model sees it."""

    places_of: dict[int, tuple[int, int]]  # layer -> planes of its keys and values
    flat: list[Tensor]  # P × (S, H, T, D)
    ids: Tensor  # (S, n)
    positions: Tensor  # (S, n)
    places: Tensor  # (S, n) where keys and values go
    slots: Tensor  # (S, 1)
    kinds: list[tuple[Rule, int | None]] = field(default_factory=list[Any])
    masks: list[Tensor] = field(default_factory=list[Tensor])  # (S, 1, n, T) to add to scores, one a kind
    met: int = 0  # kinds met in the forward that runs

    # what transformers looks at to tell layer kinds apart: none of ours is special
    layers: ClassVar[list[Any]] = []
    is_sliding: ClassVar[list[bool]] = []
    is_linear: ClassVar[list[bool]] = []
    is_dummy: ClassVar[list[bool]] = []

    @staticmethod
    def of(cache: FixedCache, size: int) -> Fixed:
        """For forwards of `size` tokens a slot."""
        slots = len(cache.lengths)
        with torch.inference_mode(False):
            ids, positions, places = (
                torch.zeros(slots, size, dtype=torch.int64, device=cache.device) for _ in range(3)
            )
        places.fill_(cache.capacity)
        own = torch.arange(slots, device=cache.device)[:, None]
        return Fixed(cache.planes.places, cache.flat, ids, positions, places, own)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Any, Any]:
        """Store keys and values (S, H, n, D); all there are (S, H, T, D)."""
        key, value = (self.flat[plane] for plane in self.places_of[layer_idx])
        key[self.slots, :, self.places] = key_states.transpose(1, 2)
        value[self.slots, :, self.places] = value_states.transpose(1, 2)
        return key, value

    def get_seq_length(self, layer_idx: int | None = None) -> int:
        """What positions begin at; a layer that asks would count them itself."""
        if layer_idx is not None:
            raise ValueError("its layers count positions themselves")
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, Any]:
        """Keys seen, and in place of their offset this object: it reaches the mask function unchanged."""
        return self.flat[0].shape[2], self

    def mask(self, rule: Rule, reach: int | None, dtype: torch.dtype) -> Tensor:  # (S, 1, n, T)
        """The mask of the next kind of layer."""
        if self.met == len(self.masks):
            slots, size = self.ids.shape
            self.kinds.append((rule, reach))
            with torch.inference_mode(False):
                self.masks.append(
                    torch.zeros(slots, 1, size, self.flat[0].shape[2], dtype=dtype, device=self.ids.device)
                )
        self.met += 1
        return self.masks[self.met - 1]

    def fill(self, cache: FixedCache, rows: list[RowInputs], tokens: Tensor) -> None:
        """Put in what the rows read; what fills up sees something, and goes where nobody looks."""
        reading = ForwardInputs(cache, rows)
        self.places.fill_(cache.capacity)
        at = 0
        for row in rows:
            num = row.end - row.start
            self.ids[row.slot, :num] = tokens[at : at + num]
            self.positions[row.slot, :num] = reading.query_positions(row)
            self.places[row.slot, :num] = cache.count[row.start : row.end]
            at += num
        for (rule, reach), mask in zip(self.kinds, self.masks, strict=True):
            for row, seen in zip(rows, reading.masks(rule, reach, mask.device), strict=True):
                _show(mask[row.slot, 0, : row.end - row.start], row, seen)


def _show(values: Tensor, row: RowInputs, seen: RowMask) -> None:  # (n, T)
    """Write what a row's tokens see as numbers to add."""
    hidden = torch.finfo(values.dtype).min
    values.fill_(hidden)
    own = values[:, seen.low : row.end]
    mask = seen.on(values.device)
    if mask is not None:
        own.masked_fill_(mask, 0)
    elif seen.is_causal:
        own.triu_(row.start + 1)
    else:
        own.zero_()
