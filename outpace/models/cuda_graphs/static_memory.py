"""Inputs and KV cache at fixed addresses, as CUDA graphs require.

Letters: S slots, n tokens of each slot, N tokens of all rows, T cache positions of each slot, P planes (keys
or values of one layer), H heads, D head size, F size of a feature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from outpace.models.eager.forward_inputs import ForwardInputs, RowMask
from outpace.models.eager.own_inputs import OwnInputs, Rule
from outpace.models.forward.kv_cache import EagerCache, Planes
from outpace.models.forward.row_inputs import RowInputs

MIN_CAPACITY = 256  # cache positions per slot of the smallest cache; sizes are this times a power of 2
KEPT_BYTES = 1 << 30  # most memory of closed caches that is kept, without that of the last one closed

Storages = list[Tensor]


class MemoryPool:
    """Reuses the memory of closed KV caches, so that CUDA graphs recorded for that memory stay valid.

    Kept are the memory of the last cache that was closed and up to KEPT_BYTES of earlier ones; otherwise
    caches of many sizes would fill the device."""

    def __init__(self, forget: Callable[[int], None]) -> None:
        """`forget` drops the graphs recorded for the memory at an address, which is about to be freed."""
        self.forget = forget
        # free memory as ((slots, cache positions), storages), in the order in which its caches were closed
        self._free: list[tuple[tuple[int, int], Storages]] = []

    def take(self, slots: int, capacity: int) -> Storages | None:
        """Remove free memory of this size from the pool and return it; None if there is none."""
        for index in reversed(range(len(self._free))):
            if self._free[index][0] == (slots, capacity):
                return self._free.pop(index)[1]
        return None

    def give(self, slots: int, capacity: int, storages: Storages) -> None:
        """Return memory to the pool."""
        self._free.append(((slots, capacity), storages))
        while sum(each.nbytes for _, storages in self._free[:-1] for each in storages) > KEPT_BYTES:
            _, freed = self._free.pop(0)
            self.forget(freed[0].data_ptr())


class StaticCache(EagerCache):
    """An `EagerCache` on pooled memory, in which all slots have the same number of cache positions. The last
    cache position of each slot is a scratch position to which keys and values of padding tokens are
    written.

    A cache that grows holds its entries on the host while its memory is freed, with the graphs recorded for
    it, and the larger memory is allocated: the device never holds both."""

    def __init__(
        self, pool: MemoryPool, planes: Planes, slots: int, capacity: int, device: torch.device
    ) -> None:
        super().__init__(planes, capacity, device)
        self._pool = pool
        self.storages: Storages = []  # one per shape, (P, S, H, T, D); more slots than `lengths` has
        self._to_pool: finalize[..., StaticCache] | None = (
            None  # gives the memory back when the cache is closed
        )
        self._allocate(slots, capacity)
        self.grow(slots)

    def _allocate(self, slots: int, capacity: int) -> None:
        """Take memory from the pool, or allocate it, and copy the entries of the present memory."""
        length = MIN_CAPACITY
        while length <= capacity:
            length *= 2
        self.capacity = length - 1
        self.count_to(length)
        entries = self._freed()
        self.storages = self._pool.take(slots, length) or self._memory(slots, length)
        self._to_pool = finalize(self, self._pool.give, slots, length, self.storages)
        for slot, kept in entries.items():
            for storage, entry in zip(self.storages, kept, strict=True):
                storage[:, slot, :, : entry.shape[2]] = entry.to(storage.device)
        self.flat = [plane for storage in self.storages for plane in storage.unbind()]  # P × (S, H, T, D)

    def _freed(self) -> dict[int, Storages]:
        """Free the memory, with the graphs recorded for it; returns the entries in use, on the host, by
        slot."""
        entries: dict[int, Storages] = {}
        for slot, length in enumerate(self.lengths):
            # the nodes of the tree scored last are behind the committed entries
            used = length + (self.read if slot in self.slots else 0)
            if used:
                parts = [storage[:, slot, :, :used] for storage in self.storages]
                entries[slot] = [part.clone() if part.device.type == "cpu" else part.cpu() for part in parts]
        if self._to_pool is not None:
            self._to_pool.detach()
            self._pool.forget(self.storages[0].data_ptr())
        self.storages, self.flat = [], list[Tensor]()
        return entries

    def _memory(self, slots: int, capacity: int) -> Storages:
        # zeros: masked values are multiplied by 0, and 0 times an uninitialised NaN is NaN
        with torch.inference_mode(False):
            return [
                torch.zeros(
                    count, slots, shape.heads, capacity, shape.size, dtype=shape.dtype, device=shape.device
                )
                for shape, count in zip(self.planes.shapes, self.planes.counts, strict=True)
            ]

    def grow(self, slots: int) -> None:
        held = self.storages[0].shape[1]
        if slots > held:
            self._allocate(max(slots, 2 * held), self.capacity)
        super().grow(slots)

    def slot_bytes(self, slot: int, tokens: int) -> int:
        """All slots have the same memory, whether they are used or not."""
        length = self.storages[0].shape[3]
        while length <= tokens:
            length *= 2
        return length * self.planes.token_bytes

    def bytes_for(self, tokens: Mapping[int, int]) -> int:
        """That of the slots in use, and of those given."""
        used = {slot for slot, length in enumerate(self.lengths) if length} | tokens.keys()
        return len(used) * self.slot_bytes(0, max(tokens.values(), default=0))

    def reserve(self, slot: int, tokens: int) -> None:
        if tokens > self.capacity:
            self._allocate(self.storages[0].shape[1], tokens)

    def views(self, slot: int, start: int, end: int) -> Sequence[Tensor]:  # planes × (1, H, end - start, D)
        """Views of the entries at cache positions start to end - 1 of one slot, one per plane; no copies."""
        return [
            plane
            for storage in self.storages
            for plane in storage[:, slot : slot + 1].narrow(3, start, end - start).unbind()
        ]

    def _move(self, moves: list[tuple[int, int, int]]) -> None:
        for storage in self.storages:
            slot, source, target = torch.tensor(tuple(zip(*moves, strict=True)), device=storage.device)
            storage[:, slot, :, target] = storage[:, slot, :, source]


@dataclass(eq=False)
class StaticInputs(OwnInputs):
    """The inputs at fixed addresses for forwards of one size; passed to the model as its KV cache."""

    planes_of_layer: dict[int, tuple[int, int]]  # layer -> indices of the planes of its keys and values
    flat: list[Tensor]  # P × (S, H, T, D)
    ids: Tensor  # (S, n) token ids
    positions: Tensor  # (S, n) position ids
    cache_positions: Tensor  # (S, n) cache positions to which keys and values are written
    slots: Tensor  # (S, 1) 0 to S - 1
    features: Tensor | None = None  # (S, n, F) of a draft head
    kinds: list[tuple[Rule, int | None]] = field(default_factory=list[Any])  # layer type's mask rule, reach
    # one additive attention mask per layer type, in the order of `kinds`: (S slots, 1, n tokens of a slot,
    # T cache positions)
    masks: list[Tensor] = field(default_factory=list[Tensor])
    masks_used: int = 0  # number of masks requested so far in the running forward

    @staticmethod
    def of(cache: StaticCache, size: int) -> StaticInputs:
        """New inputs for forwards with `size` tokens per slot."""
        slots = cache.storages[0].shape[1]
        with torch.inference_mode(False):
            ids, positions, cache_positions = (
                torch.zeros(slots, size, dtype=torch.int64, device=cache.device) for _ in range(3)
            )
        cache_positions.fill_(cache.capacity)
        own = torch.arange(slots, device=cache.device)[:, None]
        return StaticInputs(cache.planes.of_layer, cache.flat, ids, positions, cache_positions, own)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Any, Any]:
        """Store keys and values (S, H, n, D); return those of all cache positions (S, H, T, D)."""
        key, value = (self.flat[plane] for plane in self.planes_of_layer[layer_idx])
        key[self.slots, :, self.cache_positions] = key_states.transpose(1, 2)
        value[self.slots, :, self.cache_positions] = value_states.transpose(1, 2)
        return key, value

    def get_seq_length(self, layer_idx: int | None = None) -> int:
        """0, since position ids are an input of the model. ValueError for a layer that computes them from the
        cache's length."""
        if layer_idx is not None:
            raise ValueError("its layers compute position ids themselves")
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, Any]:
        """Number of keys, and this object as their offset, which transformers passes on to the mask
        function."""
        return self.flat[0].shape[2], self

    def attention_mask(  # (S, 1, n, T)
        self, rule: Rule, reach: int | None, dtype: torch.dtype, device: Any
    ) -> Tensor:
        """The additive mask of the next layer type in the running forward; allocated in the first forward."""
        if self.masks_used == len(self.masks):
            slots, size = self.ids.shape
            self.kinds.append((rule, reach))
            with torch.inference_mode(False):
                self.masks.append(
                    torch.zeros(slots, 1, size, self.flat[0].shape[2], dtype=dtype, device=self.ids.device)
                )
        self.masks_used += 1
        return self.masks[self.masks_used - 1]

    def open_features(self, size: int, dtype: torch.dtype) -> None:
        """Make room for features of this size, if there is none."""
        if self.features is None:
            with torch.inference_mode(False):
                self.features = torch.zeros(*self.ids.shape, size, dtype=dtype, device=self.ids.device)

    def fill(
        self, cache: StaticCache, rows: list[RowInputs], tokens: Tensor, features: Tensor | None = None
    ) -> None:
        """Copy token ids, position ids, cache positions, attention masks and features of these rows into the
        static tensors; `tokens` (N,) and `features` (N, F) are those of all rows, concatenated. Padding
        tokens attend to at least one key, and their keys and values are written to the scratch position."""
        inputs = ForwardInputs(cache, rows)
        self.cache_positions.fill_(cache.capacity)
        at = 0
        for row in rows:
            num = row.end - row.start
            self.ids[row.slot, :num] = tokens[at : at + num]
            self.positions[row.slot, :num] = inputs.query_positions(row)
            self.cache_positions[row.slot, :num] = cache.count[row.start : row.end]
            if features is not None:
                assert self.features is not None
                self.features[row.slot, :num] = features[at : at + num]
            at += num
        for (rule, reach), mask in zip(self.kinds, self.masks, strict=True):
            for row, seen in zip(rows, inputs.masks(rule, reach, mask.device), strict=True):
                _write_mask(mask[row.slot, 0, : row.end - row.start], row, seen)


def _write_mask(values: Tensor, row: RowInputs, seen: RowMask) -> None:  # (n, T)
    """Write a row's attention mask into `values`, in additive form: 0 or the dtype's minimum."""
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
