"""A suffix automaton that grows with a text, and the longest end of it that occurred before (Hu et al. 2025, SAM)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.compiled_loops import Tokens, as_tokens, grown, loop
from outpace.indexes.tables.hash_map import HashMap, find, put

Ints = NDArray[np.int32]
Keys = NDArray[np.int64]
# columns: of a state (state 0 is the empty string), of an edge, and of what the automaton knows of itself
LINK, LENGTH, END, EDGES = 0, 1, 2, 3  # suffix link, longest string, where that first ended, first edge
TOKEN, TARGET, NEXT = 0, 1, 2
NUM_TOKENS, NUM_STATES, NUM_EDGES, LAST, STATE, MATCHED = 0, 1, 2, 3, 4, 5
LOW = 0xFFFFFFFF
MOST = (1 << 31) // 3  # edges are counted in int32


class Match(NamedTuple):
    """The longest end of a text that occurred earlier in it."""

    length: int  # tokens; 0: nothing
    start: int  # index of the token that followed its first occurrence


class SuffixAutomaton:
    """All substrings of one text in at most 2 states and 3 edges a token; constant time a token, amortised.

    Memory grows with the text and ends with the request that owns it; nothing is forgotten before.
    """

    def __init__(self, tokens: Tokens = ()) -> None:
        self.text = np.zeros(64, np.int32)
        self.states = np.zeros((128, 4), np.int32)
        self.states[0] = -1, 0, -1, -1
        self.edges = np.zeros((192, 3), np.int32)
        self.map = HashMap.empty(192)
        self.known = np.zeros(6, np.int32)
        self.known[NUM_STATES] = 1
        self.extend(tokens)

    def __len__(self) -> int:
        """Tokens of the text."""
        return int(self.known[NUM_TOKENS])

    @property
    def num_states(self) -> int:
        return int(self.known[NUM_STATES])

    @property
    def num_edges(self) -> int:
        return int(self.known[NUM_EDGES])

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """All that is kept, room to grow included."""
        keys, values = self.map
        return {
            "text": self.text,
            "states": self.states,
            "edges": self.edges,
            "keys": keys,
            "values": values,
            "known": self.known,
        }

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.arrays.values())

    def extend(self, tokens: Tokens) -> None:
        """Append to the text: for each token the match moves first, so that the text never matches itself."""
        self.append(as_tokens(tokens))

    def append(self, tokens: Ints) -> None:
        """The same, and a token may be -1, which `match` and `following` know nothing of."""
        size = len(self) + len(tokens)
        if size > MOST:
            raise ValueError(f"a suffix automaton holds at most {MOST} tokens: index the text in parts")
        self.text = grown(self.text, size)
        self.states = grown(self.states, 2 * size + 1)
        self.edges = grown(self.edges, 3 * size)
        self.map = self.map.grown(3 * size)
        _extend(self.text, self.states, self.edges, *self.map, self.known, tokens)

    def match(self, assumed: Tokens = ()) -> Match:
        """The longest end that occurred earlier, if `assumed` came next; the text stays as it is."""
        state, length = self._walk(assumed)
        return Match(length, int(self.states[state, END]) + 1 if length else 0)

    def following(self, most: int, assumed: Tokens = ()) -> list[int]:
        """What followed the match, up to `most` tokens: of a shorter match where the longer has fewer to offer."""
        state, length = self._walk(assumed)
        if not length:
            return []
        start = int(_place(self.states, state, len(self) - most)) + 1
        return self.text[start : min(start + most, len(self))].tolist()

    def _walk(self, assumed: Tokens) -> tuple[int, int]:
        state, length = int(self.known[STATE]), int(self.known[MATCHED])
        if not len(assumed):
            return state, length
        return _walk(self.states, self.edges, *self.map, state, length, as_tokens(assumed))


@loop
def _walk(
    states: Ints, edges: Ints, keys: Keys, values: Ints, state: int, length: int, tokens: Ints
):  # -> (int, int)
    """Where the longest known end of a string stands after more tokens."""
    for token in tokens:
        edge = find(keys, values, (state << 32) | (token & LOW))
        while edge < 0 and state > 0:
            state = states[state, LINK]
            length = states[state, LENGTH]
            edge = find(keys, values, (state << 32) | (token & LOW))
        if edge >= 0:
            state = edges[edge, TARGET]
            length += 1
    return state, length


@loop
def _place(states: Ints, state: int, latest: int) -> int:
    """Where this state or, while that is after `latest`, a suffix of it first ended."""
    while states[state, END] >= latest and states[state, LINK] > 0:
        state = states[state, LINK]
    return states[state, END]


@loop
def _connect(
    states: Ints, edges: Ints, keys: Keys, values: Ints, known: Ints, state: int, token: int, target: int
):
    edge = known[NUM_EDGES]
    known[NUM_EDGES] = edge + 1
    edges[edge, TOKEN] = token
    edges[edge, TARGET] = target
    edges[edge, NEXT] = states[state, EDGES]
    states[state, EDGES] = edge
    put(keys, values, (state << 32) | (token & LOW), edge)


@loop
def _new_state(states: Ints, known: Ints, length: int, end: int) -> int:
    state = known[NUM_STATES]
    known[NUM_STATES] = state + 1
    states[state, LINK] = 0
    states[state, LENGTH] = length
    states[state, END] = end
    states[state, EDGES] = -1
    return state


@loop
def _split(
    states: Ints, edges: Ints, keys: Keys, values: Ints, known: Ints, above: int, state: int, token: int
) -> int:
    """Give the strings of `state` that are no longer than those of `above` and the token a state of their own."""
    clone = _new_state(states, known, states[above, LENGTH] + 1, states[state, END])
    edge = states[state, EDGES]
    while edge >= 0:
        _connect(states, edges, keys, values, known, clone, edges[edge, TOKEN], edges[edge, TARGET])
        edge = edges[edge, NEXT]
    states[clone, LINK] = states[state, LINK]
    states[state, LINK] = clone
    while above >= 0:
        edge = find(keys, values, (above << 32) | (token & LOW))
        if edges[edge, TARGET] != state:
            break
        edges[edge, TARGET] = clone
        above = states[above, LINK]
    return clone


@loop
def _extend(
    text: Ints, states: Ints, edges: Ints, keys: Keys, values: Ints, known: Ints, tokens: Ints
) -> None:
    matched_state, matched = known[STATE] + 0, known[MATCHED] + 0
    for index in range(len(tokens)):
        token = tokens[index]
        matched_state, matched = _walk(
            states, edges, keys, values, matched_state, matched, tokens[index : index + 1]
        )
        size = known[NUM_TOKENS]
        text[size] = token
        new = _new_state(states, known, size + 1, size)
        above, edge = known[LAST] + 0, -1
        while above >= 0:
            edge = find(keys, values, (above << 32) | (token & LOW))
            if edge >= 0:
                break
            _connect(states, edges, keys, values, known, above, token, new)
            above = states[above, LINK]
        if above >= 0:
            below = edges[edge, TARGET]
            if states[below, LENGTH] != states[above, LENGTH] + 1:
                below = _split(states, edges, keys, values, known, above, below, token)
            states[new, LINK] = below
        known[NUM_TOKENS] = size + 1
        known[LAST] = new
    known[STATE] = matched_state
    known[MATCHED] = matched
