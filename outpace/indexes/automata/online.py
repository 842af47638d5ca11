"""A suffix automaton that grows with a text and tracks its longest suffix that occurred before (Hu et al.
2025, SAM)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.compiled_loops import Tokens, as_tokens, grown, loop
from outpace.indexes.tables.hash_map import HashMap, find, put

Ints = NDArray[np.int32]
Keys = NDArray[np.int64]
# columns of a state (state 0 is the empty string): suffix link, length of its longest string, where that
# first ended, first edge
LINK, LENGTH, END, EDGES = range(4)
TOKEN, TARGET, NEXT = range(3)  # columns of an edge; NEXT is another edge of the same state
# fields of the automaton: sizes, the state of the whole text, and state and length of the match
NUM_TOKENS, NUM_STATES, NUM_EDGES, LAST, STATE, MATCHED = range(6)
LOW = 0xFFFFFFFF  # the half of a key that holds the token
MAX_TOKENS = (1 << 31) // 3  # up to three edges per token are counted in int32


class Match(NamedTuple):
    """The longest suffix of a text that occurred earlier in it."""

    length: int  # tokens; 0: no match
    start: int  # index of the token after its first occurrence


class SuffixAutomaton:
    """All substrings of one text, in at most 2 states and 3 edges per token and amortised constant time per
    token."""

    def __init__(self, tokens: Tokens = ()) -> None:
        self.text = np.zeros(64, np.int32)
        self.states = np.zeros((128, 4), np.int32)
        self.states[0] = -1, 0, -1, -1
        self.edges = np.zeros((192, 3), np.int32)
        self.map = HashMap.empty(192)
        self.fields = np.zeros(6, np.int32)
        self.fields[NUM_STATES] = 1
        self.extend(tokens)

    def __len__(self) -> int:
        """Tokens of the text."""
        return int(self.fields[NUM_TOKENS])

    @property
    def num_states(self) -> int:
        return int(self.fields[NUM_STATES])

    @property
    def num_edges(self) -> int:
        return int(self.fields[NUM_EDGES])

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """All arrays, with their unused rows."""
        keys, values = self.map
        return {
            "text": self.text,
            "states": self.states,
            "edges": self.edges,
            "keys": keys,
            "values": values,
            "fields": self.fields,
        }

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.arrays.values())

    def extend(self, tokens: Tokens) -> None:
        """Append tokens to the text. The match moves before each token is added: the text does not match
        itself."""
        self.append(as_tokens(tokens))

    def append(self, tokens: Ints) -> None:
        """Append int32 tokens, among which -1 may separate documents."""
        size = len(self) + len(tokens)
        if size > MAX_TOKENS:
            raise ValueError(f"a suffix automaton holds at most {MAX_TOKENS} tokens: index the text in parts")
        self.text = grown(self.text, size)
        self.states = grown(self.states, 2 * size + 1)
        self.edges = grown(self.edges, 3 * size)
        self.map = self.map.grown(3 * size)
        _extend(self.text, self.states, self.edges, *self.map, self.fields, tokens)

    def match(self, assumed: Tokens = ()) -> Match:
        """The longest suffix that occurred earlier, as if `assumed` were appended to the text."""
        state, length = self._walk(assumed)
        return Match(length, int(self.states[state, END]) + 1 if length else 0)

    def continuation(self, max_tokens: int, assumed: Tokens = ()) -> list[int]:
        """Up to `max_tokens` tokens that followed the match; a shorter match is used if more tokens followed
        that."""
        state, length = self._walk(assumed)
        if not length:
            return []
        start = int(_match_end(self.states, state, len(self) - max_tokens)) + 1
        return self.text[start : min(start + max_tokens, len(self))].tolist()

    def _walk(self, assumed: Tokens) -> tuple[int, int]:
        state, length = int(self.fields[STATE]), int(self.fields[MATCHED])
        if not len(assumed):
            return state, length
        return _walk(self.states, self.edges, *self.map, state, length, as_tokens(assumed))


@loop
def _walk(
    states: Ints, edges: Ints, keys: Keys, values: Ints, state: int, length: int, tokens: Ints
):  # -> (int, int)
    """State and length of the longest known suffix after further tokens."""
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
def _match_end(states: Ints, state: int, latest: int) -> int:
    """Where the state's string first ended, or the longest suffix of it that first ended before `latest`."""
    while states[state, END] >= latest and states[state, LINK] > 0:
        state = states[state, LINK]
    return states[state, END]


@loop
def _connect(
    states: Ints, edges: Ints, keys: Keys, values: Ints, fields: Ints, state: int, token: int, target: int
):
    edge = fields[NUM_EDGES]
    fields[NUM_EDGES] = edge + 1
    edges[edge, TOKEN] = token
    edges[edge, TARGET] = target
    edges[edge, NEXT] = states[state, EDGES]
    states[state, EDGES] = edge
    put(keys, values, (state << 32) | (token & LOW), edge)


@loop
def _new_state(states: Ints, fields: Ints, length: int, end: int) -> int:
    state = fields[NUM_STATES]
    fields[NUM_STATES] = state + 1
    states[state, LINK] = 0
    states[state, LENGTH] = length
    states[state, END] = end
    states[state, EDGES] = -1
    return state


@loop
def _split(
    states: Ints, edges: Ints, keys: Keys, values: Ints, fields: Ints, above: int, state: int, token: int
) -> int:
    """Move the strings of `state` that are at most one token longer than those of `above` to a new state."""
    clone = _new_state(states, fields, states[above, LENGTH] + 1, states[state, END])
    edge = states[state, EDGES]
    while edge >= 0:
        _connect(states, edges, keys, values, fields, clone, edges[edge, TOKEN], edges[edge, TARGET])
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
    text: Ints, states: Ints, edges: Ints, keys: Keys, values: Ints, fields: Ints, tokens: Ints
) -> None:
    matched_state, matched = fields[STATE] + 0, fields[MATCHED] + 0
    for index in range(len(tokens)):
        token = tokens[index]
        matched_state, matched = _walk(
            states, edges, keys, values, matched_state, matched, tokens[index : index + 1]
        )
        size = fields[NUM_TOKENS]
        text[size] = token
        new = _new_state(states, fields, size + 1, size)
        above, edge = fields[LAST] + 0, -1
        while above >= 0:
            edge = find(keys, values, (above << 32) | (token & LOW))
            if edge >= 0:
                break
            _connect(states, edges, keys, values, fields, above, token, new)
            above = states[above, LINK]
        if above >= 0:
            below = edges[edge, TARGET]
            if states[below, LENGTH] != states[above, LENGTH] + 1:
                below = _split(states, edges, keys, values, fields, above, below, token)
            states[new, LINK] = below
        fields[NUM_TOKENS] = size + 1
        fields[LAST] = new
    fields[STATE] = matched_state
    fields[MATCHED] = matched
