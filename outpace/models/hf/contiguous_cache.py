"""The KV cache of eager forwards: each slot has memory of its own, in one piece.

The memory of a slot is allocated at its first use and freed when the slot is released. Keys and values of one
shape, of all layers, share a storage, so that one copy moves an entry in all of them.

Letters: P planes of a storage (keys or values of one layer), H heads, T cache positions, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.models.hf.kv_cache import EagerCache, Planes

BLOCK = 64  # cache positions by which a slot of a cache with capacity 0 grows


class ContiguousCache(EagerCache):
    """An `EagerCache` with one tensor (P, 1, H, T, D) per slot and shape."""

    def __init__(self, planes: Planes, slots: int, capacity: int, device: torch.device) -> None:
        super().__init__(planes, capacity, device)
        self._storages: list[list[Tensor]] = []  # per slot; empty without memory
        self.grow(slots)

    def grow(self, slots: int) -> None:
        super().grow(slots)
        self._storages += [[] for _ in range(slots - len(self._storages))]

    def slot_bytes(self, slot: int, tokens: int) -> int:
        return self._positions(slot, tokens) * self.planes.token_bytes

    def _held(self, slot: int) -> int:
        """Number of cache positions that a slot has."""
        storages = self._storages[slot]
        return storages[0].shape[3] if storages else 0

    def _positions(self, slot: int, tokens: int) -> int:
        """Number of cache positions of a slot that has at least `tokens`."""
        held = self._held(slot)
        if tokens <= held:
            return held
        if self.capacity == 0:
            return -(-tokens // BLOCK) * BLOCK
        return max(tokens, held * 5 // 4 if held else self.capacity)

    def reserve(self, slot: int, tokens: int) -> None:
        """Give a slot at least `tokens` cache positions: `capacity` at its first use, a quarter more than it
        has when that is not enough. With capacity 0 a multiple of BLOCK, whatever it has."""
        held, size = self._held(slot), self._positions(slot, tokens)
        if size == held:
            return
        self.count_to(size)
        before = self._storages[slot]
        # zeros: masked values are multiplied by 0, and 0 times an uninitialised NaN is NaN
        with torch.inference_mode(False):
            self._storages[slot] = [
                torch.zeros(count, 1, shape.heads, size, shape.size, dtype=shape.dtype, device=shape.device)
                for shape, count in zip(self.planes.shapes, self.planes.counts, strict=True)
            ]
        for old, new in zip(before, self._storages[slot], strict=False):
            new[:, :, :, :held] = old

    def release(self, slots: Sequence[int]) -> None:
        super().release(slots)
        for slot in slots:
            self._storages[slot] = []

    def views(self, slot: int, start: int, end: int) -> Sequence[Tensor]:  # planes × (1, H, end - start, D)
        """Views of the entries at cache positions start to end - 1 of one slot, one per plane; no copies."""
        storages = self._storages[slot]
        if len(storages) == 1:
            return storages[0].narrow(3, start, end - start).unbind()
        return [view for storage in storages for view in storage.narrow(3, start, end - start).unbind()]

    def _move(self, moves: list[tuple[int, int, int]]) -> None:
        for slot in dict.fromkeys(slot for slot, _, _ in moves):
            pairs = [(source, target) for of, source, target in moves if of == slot]
            for storage in self._storages[slot]:
                if storage.device.type == "cpu":
                    for source, target in pairs:
                        storage.select(3, target).copy_(storage.select(3, source))
                else:  # one kernel for all entries
                    sources, targets = torch.tensor(pairs, device=storage.device).unbind(1)
                    storage[:, :, :, targets] = storage[:, :, :, sources]
