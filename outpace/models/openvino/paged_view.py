"""A view of a target's paged KV cache for a draft model made of the target's own layers: for compiled
forwards what `outpace.models.eager.cache_view` is for eager ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from outpace.core.tree import TokenTree
from outpace.models.eager.cache_view import NOT_REWOUND
from outpace.models.forward.kv_cache import Planes
from outpace.models.openvino.paged_cache import PagedCache


class PagedView(PagedCache):
    """A view of some layers of a paged cache; the graph of the smaller model has inputs for these only."""

    def __init__(self, base: PagedCache, planes: Planes, kept: Sequence[int]) -> None:
        """`planes`: of the draft model's layers; `kept`: their indices among the planes of `base`."""
        self._base, self._kept = base, kept
        self.lengths, self.device, self.capacity = base.lengths, base.device, base.capacity
        self.planes, self.tables = planes, base.tables
        self.features: dict[int, Any] = {}
        self.requests: dict[int, Any] = {}  # of the smaller model's graphs
        self._follow()
        self.discard()

    def _follow(self) -> None:
        """Use the target's present memory, which may have been enlarged by replacing it."""
        base = self._base
        self.tokens, self.storages, self.position_ids = base.tokens, base.storages, base.position_ids
        self._version = base.version

    def bytes_for(self, tokens: Mapping[int, int]) -> int:
        return 0

    def slot_bytes(self, slot: int, tokens: int) -> int:
        return 0

    def every_plane(self) -> list[Tensor]:
        planes = self._base.every_plane()
        return [planes[index] for index in self._kept]

    def grow(self, slots: int) -> None:
        self._base.grow(slots)

    def reserve(self, slot: int, tokens: int) -> None:
        self._base.reserve(slot, tokens)
        if self._version != self._base.version:
            self.requests.clear()
        self._follow()

    def commit(self, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        self.discard()

    def rewind(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        raise ValueError(NOT_REWOUND)

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: the target frees its slots."""
