"""Records of the tokens in a KV cache: the number of layers that have entries of them, and numbers for
decisions about later tokens.

Letters: T cache positions, F numbers of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.models.eager.cache_view import EagerView
from outpace.models.forward.kv_cache import EagerCache


@dataclass(frozen=True, eq=False, slots=True)
class TokenRecords:
    """The records of one slot; written in place."""

    depth: Tensor  # (T,) int64: the first `depth` layers have keys and values of the token
    tokens: Tensor  # (T,) int64 token ids; -1: unknown
    kept: Tensor  # (T, F); NaN: unknown


class RecordingView(EagerView):
    """A view of the cache of a whole target, whose committed tokens have entries in all layers. It also holds
    the records of draft nodes."""

    def __init__(self, base: EagerCache, num_layers: int, record_size: int, dtype: torch.dtype) -> None:
        super().__init__(base)
        self._num_layers, self._size, self._dtype = num_layers, record_size, dtype
        self._records: dict[int, TokenRecords] = {}  # by slot
        self._num_whole: dict[int, int] = {}  # slot -> number of first tokens recorded as committed

    def records(self, slot: int, end: int) -> TokenRecords:
        """The records at cache positions 0 to end - 1."""
        before, length = self._records.get(slot), self.lengths[slot]
        if before is None or len(before.depth) < end:
            size = max(end, self.capacity)
            depth = torch.full((size,), self._num_layers, device=self.device)
            kept = torch.full((size, self._size), torch.nan, dtype=self._dtype, device=self.device)
            tokens = torch.full_like(depth, -1)
            if before is not None:
                depth[: len(before.depth)], kept[: len(before.kept)] = before.depth, before.kept
                tokens[: len(before.tokens)] = before.tokens
            before = self._records[slot] = TokenRecords(depth, tokens, kept)
        new = slice(self._num_whole.get(slot, 0), length)  # committed since the last forward
        before.depth[new], before.tokens[new], before.kept[new] = self._num_layers, -1, torch.nan
        self._num_whole[slot] = length
        return TokenRecords(before.depth[:end], before.tokens[:end], before.kept[:end])

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._records.pop(slot, None)
            self._num_whole.pop(slot, None)


def records_of(cache: EagerCache, slot: int, end: int, num_layers: int) -> TokenRecords:
    """The records at cache positions 0 to end - 1 of a slot: a view has them itself, other caches in the
    planes after those of the `num_layers` layers."""
    if isinstance(cache, RecordingView):
        return cache.records(slot, end)
    views, (depth, kept) = cache.views(slot, 0, end), cache.planes.of_layer[num_layers]
    numbers = views[depth][0, 0]
    return TokenRecords(numbers[:, 0], numbers[:, 1], views[kept][0, 0])
