"""Read-only suffix automaton of a corpus with occurrence counts (Hu et al. 2025, SAM Decoding).

A suffix array holds the same corpus in a sixth of the memory, but has to search for the match again after
every token, which this follows in constant time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.automata.online import SuffixAutomaton
from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree
from outpace.indexes.compiled_loops import Tokens, as_tokens, compiled_loop
from outpace.indexes.store import Arrays, in_range, require, typed

Ints = NDArray[np.int32]
# columns of a state: suffix link, length of its longest string, index of the last token of that string's
# first occurrence, number of occurrences, first edge (the edges end at the first edge of the next state)
LINK, LENGTH, END, COUNT, EDGES = range(5)
TOKEN, TARGET = range(2)  # columns of an edge: token and the state it leads to
NUM_BY_COUNT = 8  # the first 8 edges of a state are the most frequent, by count; the rest is sorted by token
SEPARATOR = -1  # token id inserted after each document


class Pointer(NamedTuple):
    """Match of a text: automaton state and length of its longest suffix that occurs in the corpus."""

    state: int = 0
    length: int = 0  # number of tokens


class StaticAutomaton:
    """Read-only suffix automaton of documents. `move` takes amortised O(1) time per token."""

    kind = "suffix-automaton"

    def __init__(self, text: Ints, states: Ints, edges: Ints, documents: int) -> None:
        self.text = text  # (n,) concatenated documents, each followed by a separator
        # (num_states + 1, 5), columns LINK to EDGES; row 0 is the empty string. The edges of state i are
        # edges[states[i, EDGES] : states[i + 1, EDGES]]; the last row is no state, only the last such end
        self.states = states
        self.edges = edges  # (num_edges, 2) token and target state, sorted by source state
        self.num_documents = documents

    @classmethod
    def build(
        cls, documents: Iterable[Tokens], on_progress: Callable[[int], None] | None = None
    ) -> StaticAutomaton:
        """Build the automaton; needs up to 200 bytes of memory per token.

        `on_progress` is called with the number of tokens just added.
        """
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
        sources = (online.map.keys_by_value(num_edges) >> 32).astype(np.int32)  # source state of each edge
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
        # suffix links must lead to shorter strings: otherwise following them might not terminate
        require((lengths[links] < lengths[1:]).all())
        return cls(text, states, edges, metadata["documents"])

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.arrays.values())

    def move(self, pointer: Pointer, tokens: Tokens) -> Pointer:
        """The match after appending tokens to the text whose match is `pointer`."""
        return Pointer(*_move(self.states, self.edges, *pointer, as_tokens(tokens)))

    def count(self, pointer: Pointer) -> int:
        """Number of occurrences of the matched suffix in the corpus; for an empty match, the corpus size in
        tokens."""
        return int(self.states[pointer.state, COUNT])

    def successors(self, pointer: Pointer, num: int = NUM_BY_COUNT) -> list[tuple[int, int]]:
        """(token, count) of the `num` most frequent next tokens after the match, at most 8, by falling
        count."""
        first, last = self.states[pointer.state : pointer.state + 2, EDGES].tolist()
        frequent = self.edges[first : min(first + NUM_BY_COUNT, last)].tolist()
        return [(token, int(self.states[to, COUNT])) for token, to in frequent if token != SEPARATOR][:num]

    def next_probs(self, context: Tokens, tokens: Tokens) -> NDArray[np.float64]:  # (C,), (W,) -> (W,)
        """N-gram probabilities with back-off: for each of `tokens` the longest suffix of the context after
        which it occurs in the corpus, and the share of that suffix's occurrences which it follows; the share
        of the whole corpus where it follows none of them, 0 where it does not occur at all."""
        probs = np.zeros(len(tokens), np.float64)
        _next_probs(self.states, self.edges, as_tokens(context), as_tokens(tokens), probs)
        return probs

    def continuation(self, pointer: Pointer, max_tokens: int) -> list[int]:
        """Up to `max_tokens` tokens after the first occurrence of the match, within its document."""
        if not pointer.length:
            return []
        start = int(self.states[pointer.state, END]) + 1
        tokens = self.text[start : start + max_tokens].tolist()
        return tokens[: tokens.index(SEPARATOR)] if SEPARATOR in tokens else tokens

    def continuation_tree(self, pointer: Pointer, num_nodes: int = 60, per_depth: int = 8) -> CandidateTree:
        """Tree of the `num_nodes` most frequent continuations of the match, at most `per_depth` nodes per
        depth, by falling weight.

        A node's weight estimates its path's probability: the product of count(child) / count(parent).
        """
        if not pointer.length or num_nodes < 1:
            return NO_CANDIDATES
        nodes, weights = np.empty((num_nodes, 2), np.int32), np.empty(num_nodes, np.float64)
        size = int(_continuation_tree(self.states, self.edges, pointer.state, per_depth, nodes, weights))
        tokens, parents = nodes[:size].T.tolist()
        return CandidateTree(tokens, parents, weights[:size].tolist(), pointer.length)


@compiled_loop
def _next(states: Ints, edges: Ints, state: int, token: int) -> int:
    """The state that the edge with this token leads to, -1 if `state` has no such edge."""
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


@compiled_loop
def _move(states: Ints, edges: Ints, state: int, length: int, tokens: Ints):  # -> state, length
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


@compiled_loop
def _next_probs(states: Ints, edges: Ints, context: Ints, tokens: Ints, probs: NDArray[np.float64]) -> None:
    """Fill `probs` (W,) with the share of each token after the longest suffix of the context that it
    follows."""
    # shorter suffixes in a state occur where its longest one does: only suffix links lead to other counts
    matched, _ = _move(states, edges, 0, 0, context)
    for index in range(len(tokens)):
        state = matched + 0
        target = _next(states, edges, state, tokens[index])
        while target < 0 and state > 0:
            state = states[state, LINK]
            target = _next(states, edges, state, tokens[index])
        if target >= 0:
            # the root's count may be anything in damaged files
            probs[index] = min(1.0, states[target, COUNT] / max(1, states[state, COUNT]))


@compiled_loop
def _continuation_tree(
    states: Ints, edges: Ints, start: int, per_depth: int, nodes: Ints, weights: NDArray[np.float64]
) -> int:
    """Fill `nodes` (num_nodes, 2: token, parent) and `weights` (num_nodes,) with the continuations of the
    state `start` by falling weight; returns the number of nodes."""
    state_of, depth_of, used = [0] * len(nodes), [0] * len(nodes), [0] * (len(nodes) + 1)
    # entries: (-weight, order of insertion, edge, end of the source state's edges by count, parent node); of
    # sibling edges only the most frequent unused one is in the heap
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
        # continue with the next sibling edge
        state = start if parent < 0 else state_of[parent]
        above = 1.0 if parent < 0 else weights[parent]
        edge += 1


@compiled_loop
def _edges_by_count(states: Ints, state: int):  # -> first, end
    """Range [first, end) of the edges of a state that are sorted by count."""
    first = states[state, EDGES] + 0
    return first, min(first + NUM_BY_COUNT, states[state + 1, EDGES] + 0)


@compiled_loop
def _add_to_suffixes(states: Ints, counts: Ints, order: NDArray[np.int64]) -> None:
    """Add each state's count to that of its suffix link; `order`: the states by falling length."""
    for state in order:
        if state > 0:
            counts[states[state, LINK]] += counts[state]


def _counts(states: Ints, num_tokens: int) -> Ints:
    """(S,) number of occurrences of each state's strings, from the first three columns of the states."""
    # standard counting in suffix automata: 1 per state of a text prefix (no clone), summed along suffix links
    counts = (states[:, LENGTH] == states[:, END] + 1).astype(np.int32)
    _add_to_suffixes(states, counts, np.argsort(-states[:, LENGTH], kind="stable"))
    counts[0] = num_tokens
    return counts


def _by_count(sources: Ints, edges: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Source states and edges, sorted by source state and within a state in the order of NUM_BY_COUNT.

    counts: number of occurrences of each state.
    """
    order = np.lexsort((edges[:, TOKEN], -counts[edges[:, TARGET]], sources))
    sources, edges = sources[order], edges[order]
    rank = np.arange(len(edges)) - np.searchsorted(sources, sources)
    rest = np.flatnonzero(rank >= NUM_BY_COUNT)
    edges[rest] = edges[rest[np.lexsort((edges[rest, TOKEN], sources[rest]))]]
    return sources, edges
