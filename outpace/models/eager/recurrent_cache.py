"""The cache of a model with recurrent layers: the keys and values of its attention layers, and the states of
the recurrent ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from outpace.core.common_length import common_length
from outpace.models.eager.contiguous_cache import ContiguousCache, RetainedText
from outpace.models.eager.recurrent_states import States
from outpace.models.forward.kv_cache import Planes


class RecurrentCache(ContiguousCache):
    """A `ContiguousCache` that also holds copies of the recurrent layers' states, each with its position: the
    number of tokens of the slot's text from which it was computed.

    A commit does not change the states. The slot's next forward asks for the states at the position of its
    first token (`states_before`).

    Of a text that has ended, the states at one position are kept, at its end or a few tokens before. A
    request can use them only if it begins with all tokens before it, as the next turn of a chat does."""

    def __init__(
        self, planes: Planes, slots: int, capacity: int, device: torch.device, *, in_8_bits: bool = False
    ) -> None:
        # slot -> copies by increasing position: before each forward whose tokens may still be discarded, and
        # after the last forward
        self._states: dict[int, list[States]] = {}
        self._final_states = WeakKeyDictionary[RetainedText, States]()
        super().__init__(planes, slots, capacity, device, in_8_bits=in_8_bits)

    def states_before(self, slot: int, position: int) -> States | None:
        """The last states of this slot after at most `position` tokens; later ones are dropped. None if there
        are none."""
        kept = [states for states in self._states.get(slot, ()) if states.position <= position]
        self._states[slot] = kept
        return kept[-1] if kept else None

    def keep(self, slot: int, before: States, after: States) -> None:
        """Keep the states before and after a forward, and earlier ones if they are needed to compute the
        states at the end of the slot's committed tokens."""
        earlier = [states for states in self._states.get(slot, ()) if states.position < before.position]
        at_most = [states.position for states in (*earlier, before) if states.position <= self.lengths[slot]]
        oldest = max(at_most, default=0)
        self._states[slot] = [*(states for states in earlier if states.position >= oldest), before, after]

    def slot_bytes(self, slot: int, tokens: int) -> int:
        num_states = self._num_states(slot) if tokens or slot in self._states else 0
        return super().slot_bytes(slot, tokens) + num_states * self.planes.state_bytes

    def _num_states(self, slot: int) -> int:
        """Number of copies of the states that a slot in use holds. At least two are counted, those before and
        after a forward, because the next forward will need them."""
        return max(2, len(self._states.get(slot, ())))

    def bytes_for(self, tokens: Mapping[int, int]) -> int:
        return sum(self.slot_bytes(slot, tokens.get(slot, 0)) for slot in range(len(self.lengths)))

    def reserve(self, slot: int, tokens: int) -> None:
        self._states.setdefault(slot, [])
        super().reserve(slot, tokens)

    def _fits(self, positions: int, retained: Sequence[RetainedText]) -> bool:
        states = sum(map(self._num_states, self._states)) * self.planes.state_bytes
        return super()._fits(positions + -(-states // self.planes.token_bytes), retained)

    def restore(self, slot: int, tokens: Tensor) -> int:  # (T,)
        """Only a retained text that `tokens` begin with as a whole is used; the slot takes its memory."""
        texts = [old for old in self._retained if common_length(old.tokens, tokens) == len(old.tokens)]
        if not texts:
            return 0
        text = max(texts, key=lambda candidate: len(candidate.tokens))
        self._retained.remove(text)
        length = len(text.tokens)
        self._adopt(text, slot, length)
        self.lengths[slot] = length
        self._states[slot] = [self._final_states[text]]
        return length

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            tokens = self._tokens.get(slot)
            states = None if tokens is None else self.states_before(slot, len(tokens))
            if tokens is not None:
                # If the last forward also read draft tokens that were rejected, the newest states lie behind
                # the end of the text. The text is then retained up to an earlier position with known states.
                self._tokens[slot] = tokens[: states.position if states else 0]
            before = set(self._retained)
            super().release((slot,))
            for text in set(self._retained) - before:
                assert states is not None
                self._final_states[text] = States(states.position, states.layers)
                # the limit is in cache positions: the states count as the positions of equal memory
                text.num_positions += -(-states.num_bytes // self.planes.token_bytes)
            self._states.pop(slot, None)
        self._evict(0)

    def rewind(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Where the states at the index are no longer known, the whole text is read again."""
        known = [
            length if self.states_before(slot, length) else 0
            for slot, length in zip(slots, lengths, strict=True)
        ]
        super().rewind(slots, known)

    def limit(self, num_bytes: int, *, by: str = "") -> None:
        if self.planes.token_bytes:  # without attention layers, no text is retained
            super().limit(num_bytes, by=by)
