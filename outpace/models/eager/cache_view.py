"""A view of a target's KV cache (eager forwards) for a draft model made of the target's own layers.

The committed entries were computed by the whole target. The draft model writes its entries of draft nodes at
the cache positions after these, where the target's next forward overwrites them. Only the target commits and
frees entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from outpace.core.tree import TokenTree
from outpace.models.forward.kv_cache import EagerCache

NOT_REWOUND = "a view of the target's KV cache cannot go back: give a draft model that has a cache of its own"
OWN_CACHE = "the layers of a target read the target's own KV cache, compiled as the target is"


class EagerView(EagerCache):
    """A view of the cache of eager forwards."""

    def __init__(self, base: EagerCache) -> None:
        # no memory of its own, so the initialisers of the base classes are not called
        self._base = base
        self.lengths, self.planes, self.device = base.lengths, base.planes, base.device
        self.capacity, self.in_8_bits, self.count = base.capacity, base.in_8_bits, base.count
        self.discard()

    def bytes_for(self, tokens: Mapping[int, int]) -> int:
        return 0

    def slot_bytes(self, slot: int, tokens: int) -> int:
        return 0

    def grow(self, slots: int) -> None:
        self._base.grow(slots)

    def reserve(self, slot: int, tokens: int) -> None:
        self._base.reserve(slot, tokens)
        self.count = self._base.count  # replaced if the memory had to grow

    def causal_mask(self, start: int, end: int) -> Tensor:
        return self._base.causal_mask(start, end)

    def views(self, slot: int, start: int, end: int) -> Sequence[Tensor]:
        return self._base.views(slot, start, end)

    def commit(self, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        self.discard()

    def rewind(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        raise ValueError(NOT_REWOUND)

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: the target frees its slots."""
