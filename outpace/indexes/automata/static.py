"""A suffix automaton of a corpus with occurrence counts (Hu et al. 2025, the static part of SAM Decoding)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.automata.online import SuffixAutomaton
from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree
from outpace.indexes.compiled_loops import Tokens, as_tokens, loop
from outpace.indexes.store import Arrays, in_range, require, typed

Ints = NDArray[np.int32]
# columns of a state: suffix link, length of its longest string, where that first ended, occurrences, first
# edge; the edges of a state end where those of the next one begin
LINK, LENGTH, END, COUNT, EDGES = range(5)
TOKEN, TARGET = range(2)  # columns of an edge
NUM_BY_COUNT = 8  # first edges of a state, sorted by count; the others follow, sorted by token
SEPARATOR = -1  # after each document


class Pointer(NamedTuple):
    """The state of the longest suffix of a text that occurs in the corpus, and the length of that suffix."""

    state: int = 0
    length: int = 0  # tokens


class StaticAutomaton:
    """All substrings of documents; read-only. `move` takes amortised constant time per token."""

    kind = "suffix-automaton"

    def __init__(self, text: Ints, states: Ints, edges: Ints, documents: int) -> None:
        self.text = text  # (n,) documents, each with a separator behind it
        self.states = states  # (num_states + 1, 5); state 0 is the empty string, the last row ends the edges
        self.edges = edges  # (num_edges, 2)
        self.num_documents = documents

    @classmethod
    def build(
        cls, documents: Iterable[Tokens], on_progress: Callable[[int], None] | None = None
    ) -> StaticAutomaton:
        """Takes up to 200 bytes of memory per token. `on_progress` gets the number of tokens just added."""
        online, num_documents = SuffixAutomaton(), 0
        for document in documents:
            online.append(np.append(as_tokens(document), np.int32(SEPARATOR)))
            num_documents += 1
            if on_progress:
                on_progress(len(document))
        return cls._from_online(online, num_documents)

    @classmethod
    def _from_online(cls, online: SuffixAutomaton, num_documents: int) -> Self:
        size, num_states, num_edges = len(online), online.num_states, online.num_edges
        sources = (online.map.keys_by_value(num_edges) >> 32).astype(np.int32)  # the state each edge leaves
        states = np.zeros((num_states + 1, 5), np.int32)
        states[:num_states, :COUNT] = online.states[:num_states, :COUNT]
        states[:num_states, COUNT] = _counts(states[:num_states], size - num_documents)
        sources, edges = _by_count(sources, online.edges[:num_edges, :2], states[:, COUNT])
        states[:, EDGES] = np.searchsorted(sources, np.arange(num_states + 1))
        return cls(online.text[:size].copy(), states, edges, num_documents)

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return {"text": self.text, "states": self.states, "edges": self.edges}

    @property
    def metadata(self) -> dict[str, int]:
        return {"tokens": len(self.text) - self.num_documents, "documents": self.num_documents}

    @property
    def max_token(self) -> int:
        return max(int(self.text.max(initial=-1)), int(self.edges[:, TOKEN].max(initial=-1)))

    @classmethod
    def from_arrays(cls, arrays: Arrays, metadata: Mapping[str, int]) -> Self:
        text, states, edges = typed(arrays, text=(None,), states=(None, 5), edges=(None, 2))
        num_states = len(states) - 1
        require(num_states > 0)
        links, lengths, first_edges = states[1:-1, LINK], states[:-1, LENGTH], states[:, EDGES]
        require(
            in_range(text, SEPARATOR, np.inf),
            int((text == SEPARATOR).sum()) == metadata["documents"],
            in_range(edges[:, TOKEN], SEPARATOR, np.inf),
            in_range(edges[:, TARGET], 1, num_states),
            in_range(links, 0, num_states),
            in_range(states[1:-1, END], 0, len(text)),
            in_range(states[1:-1, COUNT], 1, len(text) + 1),
            first_edges[0] == 0 and first_edges[-1] == len(edges),
            (first_edges[:-1] <= first_edges[1:]).all(),
            lengths[0] == 0,
        )
        # suffix links lead to shorter strings, so that following them ends
        require((lengths[links] < lengths[1:]).all())
        return cls(text, states, edges, metadata["documents"])

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.arrays.values())

    def move(self, pointer: Pointer, tokens: Tokens) -> Pointer:
        """The pointer after further tokens of the text."""
        return Pointer(*_move(self.states, self.edges, *pointer, as_tokens(tokens)))

    def count(self, pointer: Pointer) -> int:
        """Occurrences of the matched tokens in the corpus; its number of tokens for an empty match."""
        return int(self.states[pointer.state, COUNT])

    def successors(self, pointer: Pointer, num: int = NUM_BY_COUNT) -> list[tuple[int, int]]:
        """(token, count) of the `num` most frequent next tokens, at most 8, by falling count."""
        first, last = self.states[pointer.state : pointer.state + 2, EDGES].tolist()
        frequent = self.edges[first : min(first + NUM_BY_COUNT, last)].tolist()
        return [(token, int(self.states[to, COUNT])) for token, to in frequent if token != SEPARATOR][:num]

    def continuation(self, pointer: Pointer, max_tokens: int) -> list[int]:
        """Up to `max_tokens` tokens that followed the first occurrence of the match, to the end of its
        document."""
        if not pointer.length:
            return []
        start = int(self.states[pointer.state, END]) + 1
        tokens = self.text[start : start + max_tokens].tolist()
        return tokens[: tokens.index(SEPARATOR)] if SEPARATOR in tokens else tokens

    def continuation_tree(self, pointer: Pointer, num_nodes: int = 60, per_depth: int = 8) -> CandidateTree:
        """The `num_nodes` most probable continuations, at most `per_depth` nodes at one depth, best first.

        The weight of a node is its share of the occurrences of the match.
        """
        if not pointer.length or num_nodes < 1:
            return NO_CANDIDATES
        nodes, weights = np.empty((num_nodes, 2), np.int32), np.empty(num_nodes, np.float64)
        size = int(_continuation_tree(self.states, self.edges, pointer.state, per_depth, nodes, weights))
        tokens, parents = nodes[:size].T.tolist()
        return CandidateTree(tokens, parents, weights[:size].tolist(), pointer.length)


@loop
def _next(states: Ints, edges: Ints, state: int, token: int) -> int:
    """The target of the state's edge with this token, -1 if there is none."""
    first, last = states[state, EDGES], states[state + 1, EDGES]
    rest = min(first + NUM_BY_COUNT, last)
    for edge in range(first, rest):
        if edges[edge, TOKEN] == token:
            return edges[edge, TARGET]
    low, high = rest + 0, last + 0
    while low < high:
        middle = (low + high) // 2
        if edges[middle, TOKEN] < token:
            low = middle + 1
        else:
            high = middle
    if low < last and edges[low, TOKEN] == token:
        return edges[low, TARGET]
    return -1


@loop
def _move(states: Ints, edges: Ints, state: int, length: int, tokens: Ints):  # -> (int, int)
    for token in tokens:
        target = _next(states, edges, state, token)
        while target < 0 and state > 0:
            state = states[state, LINK]
            length = states[state, LENGTH]
            target = _next(states, edges, state, token)
        if target >= 0:
            state = target
            length += 1
    return state, length


@loop
def _continuation_tree(
    states: Ints, edges: Ints, start: int, per_depth: int, nodes: Ints, weights: NDArray[np.float64]
) -> int:
    """Fill (num_nodes, 2) tokens and parents, and (num_nodes,) weights; returns the number of nodes."""
    state_of, depth_of, used = [0] * len(nodes), [0] * len(nodes), [0] * (len(nodes) + 1)
    # (-weight, order of insertion, edge, end of its state's edges by count, parent); of siblings only the
    # most frequent one not used yet is in the heap
    heap = [(0.0, 0, 0, 0, 0)]
    heap.pop()
    state, parent, above, inserted, size = start + 0, -1, 1.0, 0, 0
    edge, last = _edges_by_count(states, state)
    while True:
        if edge < last:
            weight = above * (states[edges[edge, TARGET], COUNT] / states[state, COUNT])
            heappush(heap, (-weight, inserted, edge, last, parent))
            inserted += 1
        if len(heap) == 0 or size == len(nodes):
            return size
        weight, _, edge, last, parent = heappop(heap)
        depth = 0 if parent < 0 else depth_of[parent] + 1
        if edges[edge, TOKEN] != SEPARATOR and used[depth] < per_depth:
            nodes[size, 0], nodes[size, 1] = edges[edge, TOKEN], parent
            weights[size] = -weight
            state_of[size], depth_of[size] = edges[edge, TARGET], depth
            used[depth] += 1
            child, end = _edges_by_count(states, state_of[size])
            if child < end:
                share = states[edges[child, TARGET], COUNT] / states[state_of[size], COUNT]
                heappush(heap, (weight * share, inserted, child, end, size))
                inserted += 1
            size += 1
        # go on with its next sibling
        state = start if parent < 0 else state_of[parent]
        above = 1.0 if parent < 0 else weights[parent]
        edge += 1


@loop
def _edges_by_count(states: Ints, state: int):  # -> (int, int)
    """First and end of the edges of a state that are sorted by count."""
    first = states[state, EDGES] + 0
    return first, min(first + NUM_BY_COUNT, states[state + 1, EDGES] + 0)


@loop
def _add_to_suffixes(states: Ints, counts: Ints, order: NDArray[np.int64]) -> None:
    """Add the count of each string to that of its suffix; `order` is by falling length."""
    for state in order:
        if state > 0:
            counts[states[state, LINK]] += counts[state]


def _counts(states: Ints, num_tokens: int) -> Ints:
    """(S,) occurrences of each state's strings, from the first three columns."""
    # a state whose longest string is a prefix of the text occurs once more than the longer strings that end
    # with it
    counts = (states[:, LENGTH] == states[:, END] + 1).astype(np.int32)
    _add_to_suffixes(states, counts, np.argsort(-states[:, LENGTH], kind="stable"))
    counts[0] = num_tokens
    return counts


def _by_count(sources: Ints, edges: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """The edges sorted by state, and within a state as NUM_BY_COUNT describes; with their sorted source
    states."""
    order = np.lexsort((edges[:, TOKEN], -counts[edges[:, TARGET]], sources))
    sources, edges = sources[order], edges[order]
    rank = np.arange(len(edges)) - np.searchsorted(sources, sources)
    rest = np.flatnonzero(rank >= NUM_BY_COUNT)
    edges[rest] = edges[rest[np.lexsort((edges[rest, TOKEN], sources[rest]))]]
    return sources, edges
