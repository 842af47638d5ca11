"""The paged KV cache of compiled forwards.

Letters: P planes of a storage (keys or values of one layer), S slots, C blocks (pages) of a slot, H heads,
D head size, T cache positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from outpace.models.hf.kv_cache import Planes, SlotCache
from outpace.models.openvino.paged_attention import BLOCK_SIZE

PADDING_CAPACITY = 128  # cache positions after a slot's capacity, to which padding tokens are written


class PagedCache(SlotCache):
    """A `SlotCache` in blocks: its storages are (P, S, C, H, BLOCK_SIZE, D). It also stores the token ids."""

    def __init__(self, planes: Planes, slots: int, capacity: int) -> None:
        self.tokens = numpy.zeros((slots, 0), numpy.int64)  # (S, T) token id at each cache position
        self.request: Any = None  # the InferRequest that uses this cache; None until the first forward
        super().__init__(planes, slots, capacity, torch.device("cpu"))

    def _allocate(self, capacity: int) -> None:
        self.blocks = -(-(capacity + PADDING_CAPACITY) // BLOCK_SIZE)  # number of blocks per slot
        self.capacity, slots = self.blocks * BLOCK_SIZE - PADDING_CAPACITY, len(self.lengths)
        before, tokens = self.storages, self.tokens
        with torch.inference_mode(False):
            self.tokens = numpy.zeros((slots, self.blocks * BLOCK_SIZE), numpy.int64)
            self.position_ids = numpy.arange(self.blocks * BLOCK_SIZE + 1)
            self.storages = [
                _zeros((count, slots, self.blocks, shape.heads, BLOCK_SIZE, shape.size), shape.dtype)
                for shape, count in zip(self.planes.shapes, self.planes.counts, strict=True)
            ]
        for old, new in zip(before, self.storages, strict=False):
            new[:, :, : old.shape[2]] = old
        self.tokens[:, : tokens.shape[1]] = tokens

    def views(self, slot: int, start: int, end: int) -> Sequence[Tensor]:  # planes × (1, H, end - start, D)
        """Copies of the entries at cache positions start to end - 1 of one slot, one per plane."""
        positions = torch.arange(start, end)
        found = (
            storage[:, slot, positions // BLOCK_SIZE, :, positions % BLOCK_SIZE] for storage in self.storages
        )
        return [plane.transpose(0, 1)[None] for storage in found for plane in storage.transpose(0, 1)]

    def write(self, slot: int, start: int, planes: Sequence[Tensor]) -> None:  # planes × (1, H, T, D)
        """Write keys and values, one tensor per plane, to the T cache positions of one slot from `start`."""
        positions = torch.arange(start, start + planes[0].shape[2])
        at = 0
        for storage in self.storages:
            values = torch.stack([plane[0].transpose(0, 1) for plane in planes[at : at + len(storage)]], 1)
            storage[:, slot, positions // BLOCK_SIZE, :, positions % BLOCK_SIZE] = values.to(storage.dtype)
            at += len(storage)

    def _move(self, moves: list[tuple[int, int, int]]) -> None:  # (slot, from, to)
        for storage in self.storages:
            # in increasing order, so no entry is overwritten before it is moved
            for slot, source, target in moves:
                row = storage.select(1, slot)
                (to, into), (of, out) = divmod(target, BLOCK_SIZE), divmod(source, BLOCK_SIZE)
                row.select(1, to).select(2, into).copy_(row.select(1, of).select(2, out))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros whose memory the system allocates on first write: most of a cache is never used."""
    # zeros: masked values are multiplied by 0, and 0 times an uninitialised NaN is NaN
    numbers = numpy.zeros(math.prod(shape) * dtype.itemsize, numpy.uint8)
    return torch.from_numpy(numbers).view(dtype).view(shape)
