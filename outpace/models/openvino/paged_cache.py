"""The paged KV cache of compiled forwards: the slots share a pool of blocks (pages).

Letters: P planes of a storage (keys or values of one layer), N blocks of the pool, H heads, D head size, S
slots, T cache positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from outpace.models.forward.kv_cache import Planes, SlotCache
from outpace.models.openvino.block_tables import PADDING, BlockTables
from outpace.models.openvino.paged_attention import BLOCK_SIZE


class PagedCache(SlotCache):
    """A `SlotCache` in blocks: its storages are (P, N, H, BLOCK_SIZE, D). It also stores the token ids.

    The pool has blocks for `slots` texts of `capacity` tokens; further slots share it, and it is enlarged
    when no block is free. Implementation of core.contracts.PrefixCache: texts share the full blocks of their
    common prefix, to which nothing is written, since new entries follow the committed ones."""

    def __init__(self, planes: Planes, slots: int, capacity: int) -> None:
        super().__init__(planes, capacity, torch.device("cpu"))
        width = max(1, _num_blocks(capacity))
        self.tables = BlockTables(max(1, slots) * width, width)
        self.storages: list[Tensor] = []  # one per shape
        self.tokens = numpy.zeros((0, 0), numpy.int64)  # (S, T) token id at each cache position
        # slot -> (n, D) features of the nodes of its tree so far (inputs of draft heads)
        self.features: dict[int, numpy.ndarray[Any, Any]] = {}
        self.requests: dict[int, Any] = {}  # size of a graph -> the InferRequest that uses this memory
        self.version = 0  # increased when the storages are replaced
        self._block_bytes = BLOCK_SIZE * planes.token_bytes
        self._limits: dict[str, int] = {}  # name -> most blocks that slots hold and the pool retains
        self._allocate()
        self._count_positions()
        self.grow(slots)

    @classmethod
    def reopened(cls, memory: dict[str, Any]) -> PagedCache:
        """An empty KV cache that reuses the blocks, slots and OpenVINO inference requests of a cache that is
        no longer used. `memory`: the attributes of that cache."""
        cache = cls.__new__(cls)
        vars(cache).update(memory)
        cache.discard()
        cache.release(range(len(cache.lengths)))
        cache.tables.pool.evict(cache.tables.pool.num_retained)
        cache._limits = {}
        for request in cache.requests.values():
            request.restart()
        return cache

    def _allocate(self) -> None:
        """Allocate storages for the blocks of the pool and copy the entries of the present ones."""
        before, size = self.storages, self.tables.pool.num_blocks + 1
        with torch.inference_mode(False):
            self.storages = [
                _zeros((count, size, shape.heads, BLOCK_SIZE, shape.size), shape.dtype)
                for shape, count in zip(self.planes.shapes, self.planes.counts, strict=True)
            ]
        for old, new in zip(before, self.storages, strict=False):
            new[:, : old.shape[1]] = old
        self._forget_requests()

    def _count_positions(self) -> None:
        self.position_ids = numpy.arange((self.tables.width + PADDING) * BLOCK_SIZE + 1)
        self._forget_requests()

    def _forget_requests(self) -> None:
        self.requests.clear()
        self.version += 1

    def every_plane(self) -> list[Tensor]:  # P × (N, H, BLOCK_SIZE, D)
        """The planes of all storages, in order."""
        return [plane for storage in self.storages for plane in storage]

    def grow(self, slots: int) -> None:
        super().grow(slots)
        self.tables.grow(slots)
        self._grow_tokens()

    def _grow_tokens(self) -> None:
        before = self.tokens
        shape = len(self.lengths), self.tables.width * BLOCK_SIZE
        if before.shape != shape:
            self.tokens = numpy.zeros(shape, numpy.int64)
            self.tokens[: before.shape[0], : before.shape[1]] = before

    def slot_bytes(self, slot: int, tokens: int) -> int:
        return max(_num_blocks(tokens), self.tables.length(slot)) * self._block_bytes

    def bytes_for(self, tokens: Mapping[int, int]) -> int:
        tables = self.tables
        more = sum(max(0, _num_blocks(num) - tables.length(slot)) for slot, num in tokens.items())
        return (tables.pool.num_held + more) * self._block_bytes

    @property
    def retained_bytes(self) -> int:
        return self.tables.pool.num_retained * self._block_bytes

    def reserve(self, slot: int, tokens: int) -> None:
        length = _num_blocks(tokens)
        if (more := length - self.tables.length(slot)) <= 0:
            return
        self._widen(length)
        self._evict(more)
        pool = self.tables.pool
        if (missing := more - pool.num_free) > 0:
            pool.enlarge(max(pool.num_blocks + missing, pool.num_blocks * 5 // 4))
            self._allocate()
        self.tables.extend(slot, length)

    def _widen(self, length: int) -> None:
        """Permit slots of `length` blocks."""
        if length > self.tables.width:
            self.tables.widen(max(length, self.tables.width * 5 // 4))
            self._count_positions()
            self._grow_tokens()

    def _evict(self, more: int) -> None:
        """Evict retained blocks, so that slots can hold `more` blocks within the limit."""
        pool = self.tables.pool
        if self._limits and pool.num_retained:
            pool.evict(max(0, pool.num_held + pool.num_retained + more - min(self._limits.values())))

    def limit(self, num_bytes: int, *, by: str = "") -> None:
        self._limits[by] = num_bytes // self._block_bytes
        self._evict(0)

    def name(self, slot: int, tokens: Tensor) -> None:  # (T,)
        full = _full_blocks(tokens)
        self.tables.pool.name(self.tables.blocks(slot)[: len(full)], full)

    def restore(self, slot: int, tokens: Tensor) -> int:  # (T,)
        blocks = self.tables.pool.find(_full_blocks(tokens))
        self._widen(len(blocks))
        self.tables.begin(slot, blocks)
        self.lengths[slot] = len(blocks) * BLOCK_SIZE
        return self.lengths[slot]

    def release(self, slots: Sequence[int]) -> None:
        super().release(slots)
        for slot in slots:
            self.tables.release(slot)
            self.features.pop(slot, None)

    def rewind(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """ValueError if blocks that would be written again are shared or named."""
        for slot, length in zip(slots, lengths, strict=True):
            if not self.tables.pool.is_own(self.tables.blocks(slot)[length // BLOCK_SIZE :]):
                raise ValueError("a text whose entries the prefix cache knows cannot be taken back")
        super().rewind(slots, lengths)

    def views(self, slot: int, start: int, end: int) -> Sequence[Tensor]:  # planes × (1, H, end - start, D)
        """Copies of the entries at cache positions start to end - 1 of one slot, one per plane."""
        blocks, offsets = self._places(slot, start, end)
        return [plane[blocks, :, offsets].transpose(0, 1)[None] for plane in self.every_plane()]

    def write(self, slot: int, start: int, planes: Sequence[Tensor]) -> None:  # planes × (1, H, T, D)
        """Write keys and values, one tensor per plane, to the T cache positions of one slot from `start`."""
        blocks, offsets = self._places(slot, start, start + planes[0].shape[2])
        for plane, values in zip(self.every_plane(), planes, strict=True):
            plane[blocks, :, offsets] = values[0].transpose(0, 1).to(plane.dtype)

    def _places(self, slot: int, start: int, end: int) -> tuple[Tensor, Tensor]:  # (T,), (T,)
        """Block, and position in the block, of the cache positions start to end - 1 of a slot."""
        positions = numpy.arange(start, end)
        blocks = self.tables.array[slot, positions // BLOCK_SIZE].astype(numpy.int64)
        return torch.from_numpy(blocks), torch.from_numpy(positions % BLOCK_SIZE)

    def _move(self, moves: list[tuple[int, int, int]]) -> None:  # (slot, from, to)
        # in increasing order, so no entry is overwritten before it is moved
        for slot, source, target in moves:
            table = self.tables.array[slot]
            (to, into), (of, out) = divmod(target, BLOCK_SIZE), divmod(source, BLOCK_SIZE)
            here, there = int(table[to]), int(table[of])
            for storage in self.storages:
                storage.select(1, here).select(2, into).copy_(storage.select(1, there).select(2, out))


def _num_blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


def _full_blocks(tokens: Tensor) -> list[bytes]:  # (T,)
    """The tokens of each block that this text fills, as bytes."""
    numbers = tokens.numpy()
    ends = range(BLOCK_SIZE, len(numbers) + 1, BLOCK_SIZE)
    return [numbers[end - BLOCK_SIZE : end].tobytes() for end in ends]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros whose memory the system allocates on first write: most of a cache is never used."""
    # zeros: masked values are multiplied by 0, and 0 times an uninitialised NaN is NaN
    numbers = numpy.zeros(math.prod(shape) * dtype.itemsize, numpy.uint8)
    return torch.from_numpy(numbers).view(dtype).view(shape)
