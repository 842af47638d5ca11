"""The cache of a model with recurrent layers: the keys and values of its attention layers, and the states of
the recurrent ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from outpace.core.common_length import common_length
from outpace.core.tree import TokenTree
from outpace.models.eager.contiguous_cache import ContiguousCache, RetainedText
from outpace.models.eager.recurrent_layer import LayerCall
from outpace.models.eager.recurrent_states import States
from outpace.models.forward.kv_cache import Planes, local_path


@dataclass(frozen=True, eq=False)
class Record:
    """What the recurrent layers received in one forward for the tokens at cache positions start to end - 1 of
    a slot."""

    start: int
    end: int
    calls: Mapping[int, LayerCall]  # layer -> its call

    def only(self, start: int, tokens: slice | Tensor, count: int) -> Record:
        """A record of some of these tokens alone, as after a commit has discarded the others. `tokens`: which
        ones, by their index in this record; `count`: how many; `start`: cache position of the first one
        after the commit."""
        calls = {layer: call.part(tokens) for layer, call in self.calls.items()}
        return Record(start, start + count, calls)

    def until(self, end: int) -> Record:
        """The record of the tokens before this cache position."""
        return self if self.end <= end else self.only(self.start, slice(end - self.start), end - self.start)


class RecurrentCache(ContiguousCache):
    """A `ContiguousCache` that also holds copies of the recurrent layers' states, each with its position: the
    number of tokens of the slot's text from which it was computed.

    A commit does not change the states. The slot's next forward asks for the states at the position of its
    first token (`states_before`), and if there are none, for records of the tokens since the last ones.
    States belong to the tokens in the order of their cache positions, so those of a tree's branches are not
    kept: records of the accepted path take their place.

    Of a text that has ended, the states at one position are kept, at its end or a few tokens before. A
    request can use them only if it begins with all tokens before it, as the next turn of a chat does."""

    def __init__(
        self, planes: Planes, slots: int, capacity: int, device: torch.device, *, in_8_bits: bool = False
    ) -> None:
        # slot -> copies by increasing position: before each forward whose tokens may still be discarded, and
        # after the last forward
        self._states: dict[int, list[States]] = {}
        self._records: dict[int, list[Record]] = {}  # slot -> of the tokens after its oldest states, in order
        self._final_states = WeakKeyDictionary[RetainedText, States]()
        super().__init__(planes, slots, capacity, device, in_8_bits=in_8_bits)

    def states_before(self, slot: int, position: int) -> States | None:
        """The last states of this slot after at most `position` tokens; later ones are dropped. None if there
        are none."""
        kept = [states for states in self._states.get(slot, ()) if states.position <= position]
        self._states[slot] = kept
        return kept[-1] if kept else None

    def records(self, slot: int) -> list[Record]:
        """What was recorded of the slot's tokens after its oldest states, in order."""
        return self._records.get(slot, [])

    def keep(self, slot: int, states: Sequence[States], record: Record) -> None:
        """Keep a forward's record, the states with which it began and those that it ended with, and earlier
        ones if they are needed to compute the states at the end of the slot's committed tokens."""
        first = states[0].position
        known = [*(old for old in self._states.get(slot, ()) if old.position < first), *states]
        oldest = max((each.position for each in known if each.position <= self.lengths[slot]), default=0)
        self._states[slot] = [each for each in known if each.position >= oldest]
        earlier = [old.until(record.start) for old in self.records(slot) if old.start < record.start]
        self._records[slot] = [each for each in (*earlier, record) if each.end > oldest]

    def commit(self, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        for node, slot in zip(leaf, slots, strict=True):
            if node >= 0:
                self._follow(slot, local_path(tree.forest, node))
        super().commit(tree, leaf, slots)

    def _follow(self, slot: int, path: Sequence[int]) -> None:
        """Reduce what is known of a tree to the accepted path, nodes by their indices in the row."""
        base = self.lengths[slot]
        agreed = next((index for index, node in enumerate(path) if node != index), len(path))
        if agreed == len(path):
            return
        self._states[slot] = [old for old in self._states[slot] if old.position <= base + agreed]
        kept = list[Record]()
        for old in self.records(slot):
            text = range(old.start, min(old.end, base))
            nodes = [index for index, node in enumerate(path) if old.start <= base + node < old.end]
            if tokens := [*text, *(base + path[index] for index in nodes)]:
                start = text.start if text else base + nodes[0]
                kept.append(old.only(start, torch.tensor(tokens) - old.start, len(tokens)))
        self._records[slot] = kept

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
        self._records[slot] = []
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
            self._records.pop(slot, None)
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
