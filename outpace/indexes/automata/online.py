"""Suffix automaton of a growing text that tracks the longest suffix with an earlier occurrence (Hu et al.
2025, SAM Decoding).

It knows where a suffix of any length occurred, in constant time per token, but not how often: for counts, of
suffixes up to a length, SuffixDecoding has a suffix tree.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.compiled_loops import Tokens, as_tokens, compiled_loop, grown
from outpace.indexes.hash_map import HashMap, find, put

Ints = NDArray[np.int32]
Keys = NDArray[np.int64]
# columns of a state (state 0 is the empty string): suffix link, length of its longest string, index of the
# last token of that string's first occurrence, first edge, and index of the last token of its most recent
# occurrence that was recorded (see NOTED)
LINK, LENGTH, END, EDGES, RECENT = range(5)
TOKEN, TARGET, NEXT = range(3)  # columns of an edge: token, state it leads to, next edge of its source state
# scalars of the automaton: sizes; the state of the whole text; state and length of the current match
NUM_TOKENS, NUM_STATES, NUM_EDGES, LAST, STATE, MATCHED = range(6)
LOW = 0xFFFFFFFF  # mask of the token in a key of the edge map, source state << 32 | token
MAX_TOKENS = (1 << 31) // 3  # up to three edges per token, and edge indices are int32
# Each token of the text is a new occurrence of all suffixes that end with it. It is recorded, in the column
# RECENT of a suffix's state, for this many of them: the longest one that occurred before, and shorter ones,
# to which the automaton's suffix links lead. There can be as many as the text has tokens, so recording all of
# them would be slow.
NOTED = 4


class Match(NamedTuple):
    """The longest suffix of a text that also occurs earlier in it."""

    length: int  # number of tokens; 0: no match
    start: int  # index of the token after the first occurrence


class SuffixAutomaton:
    """Suffix automaton of one text: at most 2 states and 3 edges per token, amortised O(1) time per token.

    While tokens are appended it maintains the longest suffix of the text that also occurs earlier.
    """

    def __init__(self, tokens: Tokens = ()) -> None:
        self.text = np.zeros(64, np.int32)
        self.states = np.zeros((128, 5), np.int32)
        self.states[0] = -1, 0, -1, -1, -1
        self.edges = np.zeros((192, 3), np.int32)
        self.map = HashMap.empty(192)
        self.fields = np.zeros(6, np.int32)
        self.fields[NUM_STATES] = 1
        self.extend(tokens)

    def __len__(self) -> int:
        """Number of tokens of the text."""
        return int(self.fields[NUM_TOKENS])

    @property
    def matched(self) -> int:
        """Length of the longest suffix of the text that also occurs earlier in it, in tokens."""
        return int(self.fields[MATCHED])

    @property
    def num_states(self) -> int:
        return int(self.fields[NUM_STATES])

    @property
    def num_edges(self) -> int:
        return int(self.fields[NUM_EDGES])

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """All arrays by name, unused rows included."""
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
        """Append non-negative tokens to the text and update the match.

        The match is advanced by a token before that token is inserted, so a suffix never matches itself.
        """
        self.append(as_tokens(tokens))

    def append(self, tokens: Ints) -> None:
        """Append int32 tokens; -1 may be used as a separator of documents.

        Raises ValueError above MAX_TOKENS tokens in total.
        """
        size = len(self) + len(tokens)
        if size > MAX_TOKENS:
            raise ValueError(f"a suffix automaton holds at most {MAX_TOKENS} tokens: index the text in parts")
        self.text = grown(self.text, size)
        self.states = grown(self.states, 2 * size + 1)
        self.edges = grown(self.edges, 3 * size)
        self.map = self.map.grown(3 * size)
        _extend(self.text, self.states, self.edges, *self.map, self.fields, tokens)

    def match(self, assumed: Tokens = ()) -> Match:
        """The longest suffix of text + `assumed` with an earlier occurrence in the text (not modified)."""
        state, length = self._walk(assumed)
        return Match(length, int(self.states[state, END]) + 1 if length else 0)

    def continuation(self, max_tokens: int, assumed: Tokens = ()) -> list[int]:
        """Up to `max_tokens` tokens after the first occurrence of the match of text + `assumed`; [] if none.

        If that occurrence is within `max_tokens` of the end of the text, shorter matches with an earlier
        occurrence are used instead.
        """
        state, length = self._walk(assumed)
        if not length:
            return []
        start = int(_match_end(self.states, state, len(self) - max_tokens)) + 1
        return self.text[start : min(start + max_tokens, len(self))].tolist()

    def recent_continuation(self, max_tokens: int) -> list[int]:
        """Up to `max_tokens` tokens that followed the match, the longest suffix of the text that occurred
        before, at its most recent earlier occurrence; [] if no suffix did. A recent occurrence may not have
        been recorded (see NOTED); then an older one is used.

        If the match is at least as long as the number n of tokens since that occurrence, the text has a
        period of n tokens, and the continuation repeats them until it has `max_tokens`.
        """
        state, length = self.fields[STATE : MATCHED + 1].tolist()
        if not length:
            return []
        start = int(self.states[state, RECENT]) + 1
        following = self.text[start : min(start + max_tokens, len(self))].tolist()
        if len(following) < max_tokens and length >= len(following):
            following = list(islice(cycle(following), max_tokens))
        return following

    def _walk(self, assumed: Tokens) -> tuple[int, int]:
        state, length = int(self.fields[STATE]), int(self.fields[MATCHED])
        if not len(assumed):
            return state, length
        return _walk(self.states, self.edges, *self.map, state, length, as_tokens(assumed))


@compiled_loop
def _walk(
    states: Ints, edges: Ints, keys: Keys, values: Ints, state: int, length: int, tokens: Ints
):  # -> state, length
    """State and length of the match after further tokens, from `state` and `length` before them."""
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


@compiled_loop
def _match_end(states: Ints, state: int, latest: int) -> int:
    """Last index of the first occurrence of the state's string or, if that is `latest` or later, of its
    longest suffix that occurs before; of the shortest non-empty one if none does."""
    while states[state, END] >= latest and states[state, LINK] > 0:
        state = states[state, LINK]
    return states[state, END]


@compiled_loop
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


@compiled_loop
def _new_state(states: Ints, fields: Ints, length: int, end: int) -> int:
    state = fields[NUM_STATES]
    fields[NUM_STATES] = state + 1
    states[state, LINK] = 0
    states[state, LENGTH] = length
    states[state, END] = states[state, RECENT] = end
    states[state, EDGES] = -1
    return state


@compiled_loop
def _note(states: Ints, state: int, end: int) -> None:
    """Set RECENT of this state, and of the next ones along its suffix links, to the index `end`."""
    for _ in range(NOTED):
        if state <= 0:
            break
        states[state, RECENT] = end
        state = states[state, LINK]


@compiled_loop
def _split(
    states: Ints, edges: Ints, keys: Keys, values: Ints, fields: Ints, above: int, state: int, token: int
) -> int:
    """Clone `state` for its strings of at most length(above) + 1 tokens, and redirect to the clone the edges
    with this token from `above` and its suffix links; returns the clone."""
    clone = _new_state(states, fields, states[above, LENGTH] + 1, states[state, END])
    edge = states[state, EDGES]
    while edge >= 0:
        _connect(states, edges, keys, values, fields, clone, edges[edge, TOKEN], edges[edge, TARGET])
        edge = edges[edge, NEXT]
    states[clone, RECENT] = states[state, RECENT]
    states[clone, LINK] = states[state, LINK]
    states[state, LINK] = clone
    while above >= 0:
        edge = find(keys, values, (above << 32) | (token & LOW))
        if edges[edge, TARGET] != state:
            break
        edges[edge, TARGET] = clone
        above = states[above, LINK]
    return clone


@compiled_loop
def _extend(
    text: Ints, states: Ints, edges: Ints, keys: Keys, values: Ints, fields: Ints, tokens: Ints
) -> None:
    matched_state, matched = fields[STATE] + 0, fields[MATCHED] + 0
    for index in range(len(tokens)):
        token = tokens[index]
        # of the match before this token: its own position must not be found as an earlier occurrence of it
        _note(states, matched_state, fields[NUM_TOKENS] - 1)
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
        # adding the token may have split the matched state: its strings of at most `matched` tokens are now
        # in a new state, to which its suffix link leads
        while matched_state > 0 and states[states[matched_state, LINK], LENGTH] >= matched:
            matched_state = states[matched_state, LINK]
        fields[NUM_TOKENS] = size + 1
        fields[LAST] = new
    fields[STATE] = matched_state
    fields[MATCHED] = matched
