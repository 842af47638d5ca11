"""The cache of a model with recurrent layers: the keys and values of its attention layers, and the states of
the recurrent ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outpace.models.hf.contiguous_cache import ContiguousCache
from outpace.models.hf.kv_cache import Planes
from outpace.models.hf.recurrent_states import States


class RecurrentCache(ContiguousCache):
    """A `ContiguousCache` that also holds states, each with the number of tokens that it has read.

    A commit changes none of them: the next forward of a slot begins after its committed tokens and asks for
    the states there. Texts are not retained for later requests, because the states after their beginnings are
    not known."""

    def __init__(
        self, planes: Planes, slots: int, capacity: int, device: torch.device, *, in_8_bits: bool = False
    ) -> None:
        # slot -> states before its last forwards whose tokens may be discarded, and after the last one
        self._states: dict[int, list[States]] = {}
        self._state_bytes = 0  # of the states after one token; 0 before any were computed
        super().__init__(planes, slots, capacity, device, in_8_bits=in_8_bits)

    def states_before(self, slot: int, position: int) -> States | None:
        """The last states of this slot that have read at most `position` tokens; later ones are dropped. None
        if it has none."""
        kept = [each for each in self._states.get(slot, ()) if each.position <= position]
        self._states[slot] = kept
        return kept[-1] if kept else None

    def keep(self, slot: int, before: States, after: States) -> None:
        """Keep the states before and after a forward, and earlier ones from which those at the end of the
        slot's committed tokens can be computed."""
        earlier = [each for each in self._states.get(slot, ()) if each.position < before.position]
        at_most = [each.position for each in (*earlier, before) if each.position <= self.lengths[slot]]
        oldest = max(at_most, default=0)
        self._states[slot] = [*(each for each in earlier if each.position >= oldest), before, after]
        self._state_bytes = after.num_bytes

    def slot_bytes(self, slot: int, tokens: int) -> int:
        # before and after a forward
        states = 2 * self._state_bytes if tokens or slot in self._states else 0
        return super().slot_bytes(slot, tokens) + states

    def bytes_for(self, tokens: Mapping[int, int]) -> int:
        return sum(self.slot_bytes(slot, tokens.get(slot, 0)) for slot in range(len(self.lengths)))

    def limit(self, num_bytes: int) -> None:
        """Does nothing: no text is retained."""

    def name(self, slot: int, tokens: Tensor) -> None:  # (T,)
        """Does nothing: no text is retained."""

    def restore(self, slot: int, tokens: Tensor) -> int:  # (T,)
        """0: no text is retained."""
        return 0

    def release(self, slots: Sequence[int]) -> None:
        super().release(slots)
        for slot in slots:
            self._states.pop(slot, None)
