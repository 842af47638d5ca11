"""A suffix automaton of a corpus with counts, its edges by count (Hu et al. 2025, SAM Decoding's static part)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.automata.online import SuffixAutomaton
from outpace.indexes.candidates import NOTHING, Candidates
from outpace.indexes.compiled_loops import Tokens, as_tokens, loop
from outpace.indexes.store import damaged, expect, within

Ints = NDArray[np.int32]
LINK, LENGTH, END, COUNT, EDGES = 0, 1, 2, 3, 4  # of a state; its edges end where the next one's begin
TOKEN, TARGET = 0, 1
BEST = 8  # edges of a state that stand first, by count; the others follow by token
SEPARATOR = -1  # after each document


class Pointer(NamedTuple):
    """Where a request stands in the automaton: it has the longest end of the request that occurs in the corpus."""

    state: int = 0
    length: int = 0  # tokens matched


class StaticAutomaton:
    """All substrings of documents; read-only. A pointer moves in constant time a token, amortised."""

    kind = "suffix-automaton"

    def __init__(self, text: Ints, states: Ints, edges: Ints, documents: int) -> None:
        self.text = text  # (n,) documents, each with a separator behind it
        self.states = states  # (num_states + 1, 5)
        self.edges = edges  # (num_edges, 2)
        self.num_documents = documents

    @classmethod
    def build(cls, documents: Iterable[Tokens], tell: Callable[[int], None] | None = None) -> StaticAutomaton:
        """`tell` hears how many tokens were added; at most about 200 bytes a token while it is built."""
        grown, num_documents = SuffixAutomaton(), 0
        for document in documents:
            grown.append(np.append(as_tokens(document), np.int32(SEPARATOR)))
            num_documents += 1
            if tell:
                tell(len(document))
        return cls._of(grown, num_documents)

    @classmethod
    def _of(cls, grown: SuffixAutomaton, num_documents: int) -> Self:
        size, num_states, num_edges = len(grown), grown.num_states, grown.num_edges
        used = grown.map.keys >= 0
        sources = np.empty(num_edges, np.int32)
        sources[grown.map.values[used]] = grown.map.keys[used] >> 32
        states = np.zeros((num_states + 1, 5), np.int32)
        states[:num_states, :COUNT] = grown.states[:num_states, :COUNT]
        states[:num_states, COUNT] = _counts(states[:num_states], size - num_documents)
        sources, edges = _by_count(sources, grown.edges[:num_edges, :2], states[:, COUNT])
        states[:, EDGES] = np.searchsorted(sources, np.arange(num_states + 1))
        return cls(grown.text[:size].copy(), states, edges, num_documents)

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return {"text": self.text, "states": self.states, "edges": self.edges}

    @property
    def facts(self) -> dict[str, int]:
        return {"tokens": len(self.text) - self.num_documents, "documents": self.num_documents}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, int]) -> Self:
        text, states, edges = expect(arrays, text=(None,), states=(None, 5), edges=(None, 2))
        num_states, links, first = len(states) - 1, states[1:-1, LINK], states[:, EDGES]
        # the loops check nothing: they would read beyond the arrays, or never end
        if not (
            num_states > 0
            and within(links, num_states)
            and within(edges[:, TARGET], num_states)
            and within(np.diff(first), len(edges) + 1)
            and (first[0], first[-1]) == (0, len(edges))
            and (states[links, LENGTH] < states[1:-1, LENGTH]).all()
            and (states[1:-1, COUNT] > 0).all()
        ):
            raise damaged()
        return cls(text, states, edges, facts["documents"])

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.arrays.values())

    def move(self, pointer: Pointer, tokens: Tokens) -> Pointer:
        """Where a request stands after these tokens."""
        return Pointer(*_move(self.states, self.edges, *pointer, as_tokens(tokens)))

    def count(self, pointer: Pointer) -> int:
        """How often the matched tokens occur in the corpus; the number of tokens, if none are matched."""
        return int(self.states[pointer.state, COUNT])

    def successors(self, pointer: Pointer, most: int = BEST) -> list[tuple[int, int]]:
        """(token, count) of the up to 8 most frequent tokens after the matched ones, by falling count."""
        first, last = self.states[pointer.state : pointer.state + 2, EDGES].tolist()
        best = self.edges[first : min(first + BEST, last)].tolist()
        return [(token, int(self.states[to, COUNT])) for token, to in best if token != SEPARATOR][:most]

    def following(self, pointer: Pointer, most: int) -> list[int]:
        """Up to `most` tokens that followed the first occurrence, to the end of its document."""
        if not pointer.length:
            return []
        start = int(self.states[pointer.state, END]) + 1
        found = self.text[start : start + most].tolist()
        return found[: found.index(SEPARATOR)] if SEPARATOR in found else found

    def branches(self, pointer: Pointer, num_nodes: int = 60, per_depth: int = 8) -> Candidates:
        """The likeliest continuations, best first: an edge has the share of its count in its state's."""
        if not pointer.length or num_nodes < 1:
            return NOTHING
        nodes, weights = np.empty((num_nodes, 2), np.int32), np.empty(num_nodes, np.float64)
        found = int(_branches(self.states, self.edges, pointer.state, per_depth, nodes, weights))
        tokens, parents = nodes[:found].T.tolist()
        return Candidates(tokens, parents, weights[:found].tolist(), pointer.length)


@loop
def _next(states: Ints, edges: Ints, state: int, token: int) -> int:
    """Where an edge leads, -1 if there is none."""
    first, last = states[state, EDGES], states[state + 1, EDGES]
    best = min(first + BEST, last)
    for edge in range(first, best):
        if edges[edge, TOKEN] == token:
            return edges[edge, TARGET]
    low, high = best + 0, last + 0
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
def _branches(
    states: Ints, edges: Ints, start: int, per_depth: int, nodes: Ints, weights: NDArray[np.float64]
) -> int:
    """Fill (num_nodes, 2) tokens and parents, and their weights; how many there are."""
    state_of, depth_of, used = [0] * len(nodes), [0] * len(nodes), [0] * (len(nodes) + 1)
    # (-weight, when it was met, edge, end of its state's best edges, parent): a sibling waits for its elder
    heap = [(0.0, 0, 0, 0, 0)]
    heap.pop()
    state, parent, above, met, size = start + 0, -1, 1.0, 0, 0
    edge, last = _best(states, state)
    while True:
        if edge < last:
            weight = above * (states[edges[edge, TARGET], COUNT] / states[state, COUNT])
            heappush(heap, (-weight, met, edge, last, parent))
            met += 1
        if len(heap) == 0 or size == len(nodes):
            return size
        weight, _, edge, last, parent = heappop(heap)
        depth = 0 if parent < 0 else depth_of[parent] + 1
        if edges[edge, TOKEN] != SEPARATOR and used[depth] < per_depth:
            nodes[size, 0], nodes[size, 1] = edges[edge, TOKEN], parent
            weights[size] = -weight
            state_of[size], depth_of[size] = edges[edge, TARGET], depth
            used[depth] += 1
            child, end = _best(states, state_of[size])
            if child < end:
                share = states[edges[child, TARGET], COUNT] / states[state_of[size], COUNT]
                heappush(heap, (weight * share, met, child, end, size))
                met += 1
            size += 1
        # its next sibling
        state = start if parent < 0 else state_of[parent]
        above = 1.0 if parent < 0 else weights[parent]
        edge += 1


@loop
def _best(states: Ints, state: int):  # -> (int, int)
    """The most frequent edges of a state, from and to."""
    first = states[state, EDGES] + 0
    return first, min(first + BEST, states[state + 1, EDGES] + 0)


@loop
def _add_up(states: Ints, counts: Ints, order: NDArray[np.int64]) -> None:
    """What ends with a string ends with its suffix; states come by falling length."""
    for state in order:
        if state > 0:
            counts[states[state, LINK]] += counts[state]


def _counts(states: Ints, num_tokens: int) -> Ints:
    """(S,) occurrences of each state's strings, from the first three columns."""
    # a clone ends first where a longer string does
    counts = (states[:, LENGTH] == states[:, END] + 1).astype(np.int32)
    _add_up(states, counts, np.argsort(-states[:, LENGTH], kind="stable"))
    counts[0] = num_tokens
    return counts


def _by_count(sources: Ints, edges: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Edges in order of their state, there the most frequent before the others, which stand by token."""
    order = np.lexsort((edges[:, TOKEN], -counts[edges[:, TARGET]], sources))
    sources, edges = sources[order], edges[order]
    rank = np.arange(len(edges)) - np.searchsorted(sources, sources)
    rest = np.flatnonzero(rank >= BEST)
    edges[rest] = edges[rest[np.lexsort((edges[rest, TOKEN], sources[rest]))]]
    return sources, edges
