"""The attention cache in blocks of tokens, as compiled forwards read and write it.

Letters: P planes, S slots, C blocks of a slot, H heads, D head size, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from outpace.models.hf.kv_cache import Planes, SlotCache
from outpace.models.openvino.paged_attention import BLOCK

SPARE = 128  # places behind a slot's capacity, for tokens that only fill a forward up


class PagedCache(SlotCache):
    """A `SlotCache` whose storages are (P, S, C, H, BLOCK, D); it knows the tokens read as well."""

    def __init__(self, planes: Planes, slots: int, capacity: int) -> None:
        self.tokens = numpy.zeros((slots, 0), numpy.int64)  # (S, T) last read into each place
        self.request: Any = None  # what compiled forwards read it by
        super().__init__(planes, slots, capacity, torch.device("cpu"))

    def _allocate(self, capacity: int) -> None:
        self.blocks = -(-(capacity + SPARE) // BLOCK)  # of each slot
        self.capacity, slots = self.blocks * BLOCK - SPARE, len(self.lengths)
        before, tokens = self.storages, self.tokens
        with torch.inference_mode(False):
            self.tokens = numpy.zeros((slots, self.blocks * BLOCK), numpy.int64)
            self.places = numpy.arange(self.blocks * BLOCK + 1)
            self.storages = [
                _zeros((count, slots, self.blocks, shape.heads, BLOCK, shape.size), shape.dtype)
                for shape, count in zip(self.planes.shapes, self.planes.counts, strict=True)
            ]
        for old, new in zip(before, self.storages, strict=False):
            new[:, :, : old.shape[2]] = old
        self.tokens[:, : tokens.shape[1]] = tokens

    def views(self, slot: int, start: int, end: int) -> Sequence[Tensor]:  # planes × (1, H, end - start, D)
        """Places start to end of one slot, in every plane; copies."""
        places = torch.arange(start, end)
        found = (storage[:, slot, places // BLOCK, :, places % BLOCK] for storage in self.storages)
        return [plane.transpose(0, 1)[None] for storage in found for plane in storage.transpose(0, 1)]

    def write(self, slot: int, start: int, planes: Sequence[Tensor]) -> None:  # planes × (1, H, T, D)
        """Put keys and values into places of one slot."""
        places = torch.arange(start, start + planes[0].shape[2])
        at = 0
        for storage in self.storages:
            values = torch.stack([plane[0].transpose(0, 1) for plane in planes[at : at + len(storage)]], 1)
            storage[:, slot, places // BLOCK, :, places % BLOCK] = values.to(storage.dtype)
            at += len(storage)

    def _move(self, moves: list[tuple[int, int, int]]) -> None:  # (slot, from, to)
        for storage in self.storages:
            for (
                slot,
                source,
                place,
            ) in moves:  # never onto a place still to be read: a path moves forward in order
                row = storage.select(1, slot)
                (to, into), (of, out) = divmod(place, BLOCK), divmod(source, BLOCK)
                row.select(1, to).select(2, into).copy_(row.select(1, of).select(2, out))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that take memory where they are written only: most of a cache's room is never used."""
    # zeros: what is masked is multiplied by 0, and 0 times an uninitialised NaN is NaN
    numbers = numpy.zeros(math.prod(shape) * dtype.itemsize, numpy.uint8)
    return torch.from_numpy(numbers).view(dtype).view(shape)
