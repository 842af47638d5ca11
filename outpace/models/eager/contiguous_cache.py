"""The KV cache of eager forwards: each slot has contiguous memory of its own.

The memory of a slot is allocated at its first use and freed or retained when the slot is released. Keys and
values of one shape, of all layers, share a storage, so that one copy moves an entry in all of them.

Letters: P planes of a storage (keys or values of one layer), H heads, T cache positions, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outpace.core.common_length import common_length
from outpace.models.forward.kv_cache import EagerCache, Planes

BLOCK = 64  # cache positions by which a slot of a cache with capacity 0 grows
MAX_RETAINED = 512  # retained texts: each new request is compared with all of them


@dataclass(eq=False)
class RetainedText:
    """The entries of a text whose slot was released."""

    tokens: Tensor  # (T,) int64 on the host
    storages: list[Tensor]  # with at least T cache positions
    num_positions: int = field(init=False)  # of the storages; stored, as every step sums it over all texts

    def __post_init__(self) -> None:
        self.num_positions = _num_positions(self.storages)


class ContiguousCache(EagerCache):
    """An `EagerCache` with one tensor (P, 1, H, T, D) per slot and shape.

    Implementation of core.contracts.PrefixCache: attention reads a slot's memory as one tensor, so texts
    cannot share entries, and entries of a common prefix are copied."""

    def __init__(
        self, planes: Planes, slots: int, capacity: int, device: torch.device, *, in_8_bits: bool = False
    ) -> None:
        super().__init__(planes if capacity else planes.divided(), capacity, device)
        self.in_8_bits = in_8_bits
        self._storages: list[list[Tensor]] = []  # per slot; empty without memory
        self._tokens: dict[int, Tensor] = {}  # slot -> its tokens, if `name` was called
        self._retained: list[RetainedText] = []  # least recently used first
        self._limits: dict[str, int] = {}  # name -> most cache positions of slots and retained texts
        self.grow(slots)

    def grow(self, slots: int) -> None:
        super().grow(slots)
        self._storages += [[] for _ in range(slots - len(self._storages))]

    def slot_bytes(self, slot: int, tokens: int) -> int:
        return self._positions(slot, tokens) * self.planes.token_bytes

    def bytes_for(self, tokens: Mapping[int, int]) -> int:
        return sum(self.slot_bytes(slot, tokens.get(slot, 0)) for slot in range(len(self._storages)))

    @property
    def retained_bytes(self) -> int:
        return sum(text.num_positions for text in self._retained) * self.planes.token_bytes

    def _positions(self, slot: int, tokens: int) -> int:
        """Number of cache positions of a slot that has at least `tokens`."""
        held = _num_positions(self._storages[slot])
        if tokens <= held:
            return held
        if self.capacity == 0:
            return -(-tokens // BLOCK) * BLOCK
        return max(tokens, held * 5 // 4 if held else self.capacity)

    def reserve(self, slot: int, tokens: int) -> None:
        """Give a slot at least `tokens` cache positions: at its first use at least `capacity`, later at least
        a quarter more than it has. With capacity 0: the next multiple of BLOCK."""
        storages = self._storages[slot]
        held, size = _num_positions(storages), self._positions(slot, tokens)
        if size == held:
            return
        self.count_to(size)
        self._evict(size - held)
        shapes = zip(self.planes.shapes, self.planes.counts, strict=True)
        for index, (shape, count) in enumerate(shapes):
            # zeros: masked values are multiplied by 0, and 0 times an uninitialised NaN is NaN
            with torch.inference_mode(False):
                made = torch.zeros(
                    count, 1, shape.heads, size, shape.size, dtype=shape.dtype, device=shape.device
                )
            if held:
                made[:, :, :, :held] = storages[index]
                storages[index] = made  # the old memory is freed before the next storage is enlarged
            else:
                storages.append(made)

    def _adopt(self, text: RetainedText, slot: int, length: int) -> None:
        """Give an empty slot the memory of a text that is no longer retained, to use `length` entries of."""
        self._storages[slot] = text.storages
        self.reserve(slot, max(length, self.capacity))

    def limit(self, num_bytes: int, *, by: str = "") -> None:
        self._limits[by] = num_bytes // self.planes.token_bytes
        self._evict(0)

    def _evict(self, positions: int) -> None:
        """Evict retained texts until `positions` more cache positions are within the limit."""
        while self._retained and not self._fits(positions, self._retained):
            del self._retained[0]

    def _fits(self, positions: int, retained: Sequence[RetainedText]) -> bool:
        """Whether the limit allows `positions` more cache positions than slots and `retained` texts hold."""
        if not self._limits:
            return True
        held = sum(map(_num_positions, self._storages)) + sum(text.num_positions for text in retained)
        return held + positions <= min(self._limits.values())

    def name(self, slot: int, tokens: Tensor) -> None:  # (T,)
        self._tokens[slot] = tokens

    def restore(self, slot: int, tokens: Tensor) -> int:  # (T,)
        """The slot takes over the memory of a retained text if `tokens` begin with the whole text, so that no
        entries are lost, or if there is no memory for both; else entries are copied."""
        running = [RetainedText(own, self._storages[other]) for other, own in self._tokens.items()]
        texts = [*self._retained, *running]
        common = [common_length(known.tokens, tokens) for known in texts]
        length = max(common, default=0)
        if length == 0:
            return 0
        text = texts[common.index(length)]
        is_retained = text in self._retained
        if is_retained:
            self._retained.remove(text)
            both = self._positions(slot, length) + text.num_positions
            if length == len(text.tokens) or not self._fits(both, ()):
                self._adopt(text, slot, length)
                self.lengths[slot] = length
                return length
            self._evict(both)
        self.reserve(slot, length)
        for source, target in zip(text.storages, self._storages[slot], strict=True):
            target[:, :, :, :length] = source[:, :, :, :length]
        self.lengths[slot] = length
        if is_retained:
            self._retained.append(text)
        return length

    def release(self, slots: Sequence[int]) -> None:
        super().release(slots)
        for slot in slots:
            tokens, storages = self._tokens.pop(slot, None), self._storages[slot]
            self._storages[slot] = []
            if tokens is not None and len(tokens) and storages:
                self._retain(tokens, storages)

    def _retain(self, tokens: Tensor, storages: list[Tensor]) -> None:
        """Retain the entries of a text, in place of those of its prefixes. Empties `storages`."""
        length = len(tokens)
        entries = list[Tensor]()
        while storages:  # copied without unused positions of the slot, one storage at a time
            entries.append(storages.pop(0)[:, :, :, :length].clone())
        kept = [text for text in self._retained if common_length(text.tokens, tokens) < len(text.tokens)]
        self._retained = [*kept[1 - MAX_RETAINED :], RetainedText(tokens, entries)]

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


def _num_positions(storages: Sequence[Tensor]) -> int:
    return storages[0].shape[3] if storages else 0
