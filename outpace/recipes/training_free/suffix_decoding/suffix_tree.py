"""A suffix tree of bounded depth with counts, over many requests; the oldest requests are evicted first
(Oliaro et al. 2025, SuffixDecoding).

Each suffix of a request, cut to the tree's depth, is a walk down from the root. The count of a node is the
number of walks through the edge above it. Walks end at nodes only, so one count per edge is enough. An edge
refers to the text of the newest request that has a walk through it, which is evicted last.

Siblings are sorted by falling count, with O(1) time per change: siblings of equal count form a group, which
stores its first and last node; a node whose count changes by one is moved to an end of its group and joins
the neighboring group. Freed rows of nodes and groups are in linked lists and are reused first.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outpace.indexes import hash_map
from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree
from outpace.indexes.compiled_loops import Tokens, as_tokens, compiled_loop, grown
from outpace.indexes.hash_map import HashMap, find, put

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
# columns of a node: of the edge above it the number of walks, and slot, start and length of its text; then
# parent, first child, last child, next and previous sibling, group
COUNT, SLOT, START, LENGTH, PARENT, CHILD, TAIL, NEXT, PREVIOUS, GROUP = range(10)
FIRST, LAST = range(2)  # columns of a group of siblings with equal counts: its first and last node
# counters of the tree: node rows ever used, nodes in use, head of the list of freed nodes; group rows ever
# used, head of the list of freed groups
NODES, LIVE, FREE_NODE, GROUPS, FREE_GROUP = range(5)
# columns of a slot, which stores one request: position, length and reserved length of its text; its number in
# order of creation; its number of active walks (those that grow with the next token)
BASE, SIZE, CAPACITY, ORDER, ACTIVE = range(5)
ROOT = 0
MAX_DEPTH = 1 << 12
remove_key = hash_map.remove


class SuffixTree:
    """Path-compressed suffix tree of all substrings of up to `depth` tokens, with occurrence counts.

    Stores at most `max_tokens` tokens: before more are added, the oldest requests are evicted as a whole; if
    one of them is extended again, it starts as a new request. At most 2 nodes, about 200 bytes, per token.
    """

    def __init__(self, depth: int = 64, max_tokens: int = 1 << 22) -> None:
        if not 1 <= depth <= MAX_DEPTH or max_tokens < 1:
            raise ValueError(
                f"a suffix tree of depth {depth} for {max_tokens} tokens: give a depth of 1 to {MAX_DEPTH} "
                "and 1 token or more"
            )
        self.depth, self.max_tokens = depth, max_tokens
        self.nodes = np.zeros((64, 10), np.int32)
        self.groups = np.zeros((64, 2), np.int32)
        # key: node << 32 | first token of the edge from the node to a child; value: the child
        self.map = HashMap.empty(64)
        self.counters = np.zeros(5, np.int32)
        self.counters[[FREE_NODE, FREE_GROUP]] = -1
        self.counters[[NODES, LIVE]] = 1
        self.nodes[ROOT] = -1
        self.nodes[ROOT, COUNT] = 0
        self.slots = np.full((4, 5), -1, np.int64)
        # per slot: the nodes that its walks of 1, 2, ... tokens have reached
        self.active = np.zeros((4, depth), np.int32)
        self.text = np.zeros(256, np.int32)
        # creation number -> slot, request id (None: finished); oldest first
        self._requests: dict[int, tuple[int, int | None]] = {}
        self._open: dict[int, int] = {}  # id of an unfinished request -> creation number
        self._free_slots = list(range(4))
        self._next_order = self._num_tokens = self._text_end = 0

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    @property
    def num_nodes(self) -> int:
        """Number of nodes, root excluded."""
        return int(self.counters[LIVE]) - 1

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays of the tree by name, unused rows included."""
        return {
            "nodes": self.nodes,
            "groups": self.groups,
            "keys": self.map.keys,
            "values": self.map.values,
            "counters": self.counters,
            "slots": self.slots,
            "active": self.active,
            "text": self.text,
        }

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.arrays.values())

    def extend(self, request: int, tokens: Tokens) -> None:
        """Append tokens to a request, which is created unless it is unfinished; O(depth) time per token.

        Evicts the oldest requests if needed; of more than `max_tokens` tokens only the last are used.
        """
        new = as_tokens(tokens)[-self.max_tokens :]
        while self._num_tokens + len(new) > self.max_tokens:
            self.evict()
        order = self._open.get(request)
        slot = self._begin(request) if order is None else self._requests[order][0]
        self._reserve(slot, int(self.slots[slot, SIZE]) + len(new))
        self._num_tokens += len(new)
        _extend(
            self.nodes, self.groups, *self.map, self.counters, self.slots, self.text, self.active, slot, new
        )

    def finish(self, request: int) -> None:
        """Mark a request as finished: it cannot be extended; its text stays in the tree until evicted."""
        order = self._open.pop(request, None)
        if order is not None:
            slot = self._requests[order][0]
            self._requests[order] = slot, None
            self.slots[slot, CAPACITY] = self.slots[slot, SIZE]

    def evict(self) -> None:
        """Remove the oldest request with all its walks."""
        order = next(iter(self._requests))
        slot, request = self._requests.pop(order)
        if request is not None:
            del self._open[request]
        _evict(self.nodes, self.groups, *self.map, self.counters, self.slots, self.text, self.active, slot)
        self._num_tokens -= int(self.slots[slot, SIZE])
        self.slots[slot] = -1
        self._free_slots.append(slot)

    def count(self, tokens: Tokens) -> int:
        """Number of occurrences of a sequence of 1 to `depth` tokens."""
        node, _ = _locate(self.nodes, *self.map, self.slots, self.text, as_tokens(tokens), 0)
        return int(self.nodes[node, COUNT]) if node > ROOT else 0

    def speculate(
        self,
        context: Tokens,
        max_tokens: int = 64,
        *,
        max_spec_factor: float = 1.0,
        max_spec_offset: float = 0.0,
        min_token_prob: float = 0.1,
        tree: bool = False,
        extra_occurrences: int = 0,
    ) -> CandidateTree:
        """The best draft over all suffixes of the context that occur in the tree: a chain, or with `tree` a
        tree.

        A matched suffix of p tokens gives up to max_spec_factor * p + max_spec_offset draft tokens. The
        weight of a node estimates its path probability: the product of count(child) / count(parent). A chain
        follows the most frequent child; a tree takes the nodes of largest weight; both stop at weights below
        `min_token_prob`. The draft with the largest sum of weights is returned, of equal ones that of the
        longer suffix.

        extra_occurrences: number added to the count of every matched suffix in the denominator of the
        weights, for occurrences outside of this tree.
        """
        if max_tokens < 1:
            return NO_CANDIDATES
        draft, weights = np.empty((2 * max_tokens, 2), np.int32), np.empty(2 * max_tokens, np.float64)
        first, size, matched = _speculate(
            self.nodes,
            *self.map,
            self.slots,
            self.text,
            as_tokens(context[-self.depth :]),
            float(max_spec_factor),
            float(max_spec_offset),
            float(min_token_prob),
            bool(tree),
            extra_occurrences,
            draft,
            weights,
        )
        if not size:
            return NO_CANDIDATES
        tokens, parents = draft[first : first + size].T.tolist()
        return CandidateTree(tokens, parents, weights[first : first + size].tolist(), matched)

    def _request_text(self, slot: int) -> Ints:
        base, size = self.slots[slot, [BASE, SIZE]].tolist()
        return self.text[base : base + size]

    def _begin(self, request: int) -> int:
        """Allocate a slot for a new request; returns the slot."""
        if not self._free_slots:
            size = len(self.slots)
            self.slots, self.active = grown(self.slots, 2 * size, -1), grown(self.active, 2 * size)
            self._free_slots = list(range(size, 2 * size))
        slot = self._free_slots.pop()
        self.slots[slot] = 0
        self.slots[slot, [BASE, ORDER]] = self._text_end, self._next_order
        self._open[request] = self._next_order
        self._requests[self._next_order] = slot, request
        self._next_order += 1
        return slot

    def _reserve(self, slot: int, size: int) -> None:
        """Grow the arrays so that the request in `slot` can have `size` tokens and their nodes fit."""
        walks = self._num_tokens + size - int(self.slots[slot, SIZE])
        self.nodes, self.groups = grown(self.nodes, 2 * walks + 2), grown(self.groups, 2 * walks + 2)
        self.map = self.map.grown(2 * walks + 2)
        if size <= self.slots[slot, CAPACITY]:
            return
        self.slots[slot, CAPACITY] = capacity = 2 * size
        if self._text_end + capacity > len(self.text):
            self._compact()
        else:
            kept = self._request_text(slot)
            self.text[self._text_end : self._text_end + len(kept)] = kept
            self.slots[slot, BASE] = self._text_end
            self._text_end += capacity

    def _compact(self) -> None:
        """Copy the texts of all requests without gaps to a new array, larger if they would fill more than
        half of the current one."""
        live = [slot for slot, _ in self._requests.values()]
        needed = int(self.slots[live, CAPACITY].sum())
        size = len(self.text) if 2 * needed <= len(self.text) else 2 * needed
        text, self._text_end = np.zeros(size, np.int32), 0
        for slot in live:
            kept = self._request_text(slot)
            text[self._text_end : self._text_end + len(kept)] = kept
            self.slots[slot, BASE] = self._text_end
            self._text_end += int(self.slots[slot, CAPACITY])
        self.text = text


@compiled_loop
def _token_at(nodes: Ints, slots: Longs, text: Ints, node: int, offset: int) -> int:
    """The token at position `offset` of the edge above a node."""
    return int(text[slots[nodes[node, SLOT], BASE] + nodes[node, START] + offset])


@compiled_loop
def _extend(
    nodes: Ints,
    groups: Ints,
    keys: Longs,
    values: Ints,
    counters: Ints,
    slots: Longs,
    text: Ints,
    active: Ints,
    slot: int,
    tokens: Ints,
) -> None:
    """Append tokens to the request in `slot`: each extends all active walks (shorter than the depth) and
    starts a new one."""
    depth = active.shape[1]
    for token in tokens:
        position = slots[slot, SIZE] + 0
        text[slots[slot, BASE] + position] = token
        slots[slot, SIZE] = position + 1
        num = min(slots[slot, ACTIVE] + 1, depth)
        for length in range(num, 0, -1):
            node = active[slot, length - 2] + 0 if length > 1 else ROOT
            if node != ROOT and nodes[node, COUNT] == 1:
                nodes[node, LENGTH] += 1  # no other walk goes through this leaf: lengthen its edge
            else:
                node = _continue_walk(
                    nodes, groups, keys, values, counters, slots, text, slot, node, token, position
                )
            active[slot, length - 1] = node
        slots[slot, ACTIVE] = num


@compiled_loop
def _continue_walk(
    nodes: Ints,
    groups: Ints,
    keys: Longs,
    values: Ints,
    counters: Ints,
    slots: Longs,
    text: Ints,
    slot: int,
    node: int,
    token: int,
    position: int,
) -> int:
    """Extend a walk by `token` from `node`, which has other walks too; returns the node that it reaches.

    position: index of the token in the text of the request in `slot`.
    """
    child = find(keys, values, (node << 32) | token)
    if child < 0:
        child = _new_node(nodes, counters)
        nodes[child, COUNT] = 1
        nodes[child, SLOT], nodes[child, START], nodes[child, LENGTH] = slot, position, 1
        _append(nodes, groups, counters, node, child)
        put(keys, values, (node << 32) | token, child)
        return child
    if node != ROOT and nodes[node, COUNT] == nodes[child, COUNT] + 1:
        # no other walk ends at this node and all continue to the same child: the node is no longer needed
        if nodes[child, LENGTH] > 1:
            nodes[node, LENGTH] += 1
            nodes[child, START] += 1
            nodes[child, LENGTH] -= 1
            remove_key(keys, values, (node << 32) | token)
            put(keys, values, (node << 32) | _token_at(nodes, slots, text, child, 0), child)
            return node
        nodes[child, COUNT] += 1
        _refer_to(nodes, slots, child, slot, position)
        _merge_into_child(nodes, groups, keys, values, counters, slots, text, node, child)
        return child
    if nodes[child, LENGTH] > 1:
        child = _split_edge(nodes, groups, keys, values, counters, slots, text, node, child)
    _increase(nodes, groups, counters, child)
    _refer_to(nodes, slots, child, slot, position)
    return child


@compiled_loop
def _refer_to(nodes: Ints, slots: Longs, node: int, slot: int, position: int) -> None:
    """Make the one-token edge above `node` refer to the text of the request in `slot`, unless the request it
    refers to is newer."""
    if slots[slot, ORDER] >= slots[nodes[node, SLOT], ORDER]:
        nodes[node, SLOT] = slot
        nodes[node, START] = position


@compiled_loop
def _split_edge(
    nodes: Ints,
    groups: Ints,
    keys: Longs,
    values: Ints,
    counters: Ints,
    slots: Longs,
    text: Ints,
    node: int,
    child: int,
) -> int:
    """Split the edge from `node` to `child` after its first token; returns the new node between them, which
    has the child's count."""
    middle = _new_node(nodes, counters)
    nodes[middle, COUNT] = nodes[child, COUNT]
    nodes[middle, SLOT], nodes[middle, START], nodes[middle, LENGTH] = (
        nodes[child, SLOT],
        nodes[child, START],
        1,
    )
    put(keys, values, (node << 32) | _token_at(nodes, slots, text, child, 0), middle)
    _replace(nodes, groups, middle, child)
    nodes[child, START] += 1
    nodes[child, LENGTH] -= 1
    _append(nodes, groups, counters, middle, child)
    put(keys, values, (middle << 32) | _token_at(nodes, slots, text, child, 0), child)
    return middle


@compiled_loop
def _merge_into_child(
    nodes: Ints,
    groups: Ints,
    keys: Longs,
    values: Ints,
    counters: Ints,
    slots: Longs,
    text: Ints,
    node: int,
    child: int,
) -> None:
    """Remove a node whose only child has the same count; the child's edge is extended to the parent."""
    remove_key(keys, values, (node << 32) | _token_at(nodes, slots, text, child, 0))
    _free_group(groups, counters, nodes[child, GROUP])
    _replace(nodes, groups, child, node)
    # every walk on the child's edge passed the node's edge, so in the text the latter precedes the former
    nodes[child, START] -= nodes[node, LENGTH]
    nodes[child, LENGTH] += nodes[node, LENGTH]
    put(keys, values, (nodes[child, PARENT] << 32) | _token_at(nodes, slots, text, child, 0), child)
    _free_node(nodes, counters, node)


@compiled_loop
def _evict(
    nodes: Ints,
    groups: Ints,
    keys: Longs,
    values: Ints,
    counters: Ints,
    slots: Longs,
    text: Ints,
    active: Ints,
    slot: int,
) -> None:
    """Remove all walks of the request in `slot`."""
    depth, base, size = active.shape[1], slots[slot, BASE], slots[slot, SIZE]
    path = [0] * depth
    for start in range(size):
        end = min(start + depth, size)
        node, position, num = ROOT, start + 0, 0
        while position < end:
            node = find(keys, values, (node << 32) | text[base + position])
            path[num] = node
            num += 1
            position += nodes[node, LENGTH]
        if nodes[node, COUNT] == 1:
            num -= 1
            remove_key(keys, values, (nodes[node, PARENT] << 32) | _token_at(nodes, slots, text, node, 0))
            _remove(nodes, groups, counters, node)
        for index in range(num):
            _decrease(nodes, groups, counters, path[index])
        for index in range(num - 1, -1, -1):
            child = nodes[path[index], CHILD]
            if child >= 0 and nodes[child, COUNT] == nodes[path[index], COUNT]:
                _merge_into_child(nodes, groups, keys, values, counters, slots, text, path[index], child)


@compiled_loop
def _locate(
    nodes: Ints, keys: Longs, values: Ints, slots: Longs, text: Ints, tokens: Ints, first: int
):  # -> (int, int)
    """Follow tokens[first:] from the root: the node below the last edge reached, and the number of matched
    tokens on that edge; (-1, 0) if there is no such path."""
    node, offset, length, start = ROOT, 0, 0, 0
    for index in range(first, len(tokens)):
        if offset == length:
            node, offset = find(keys, values, (node << 32) | tokens[index]), 0
            if node < 0:
                return -1, 0
            length, start = nodes[node, LENGTH] + 0, slots[nodes[node, SLOT], BASE] + nodes[node, START]
        elif text[start + offset] != tokens[index]:
            return -1, 0
        offset += 1
    return node, offset


@compiled_loop
def _new_node(nodes: Ints, counters: Ints) -> int:
    node = counters[FREE_NODE] + 0
    if node >= 0:
        counters[FREE_NODE] = nodes[node, NEXT]
    else:
        node = counters[NODES] + 0
        counters[NODES] = node + 1
    counters[LIVE] += 1
    nodes[node, CHILD] = -1
    nodes[node, TAIL] = -1
    return node


@compiled_loop
def _free_node(nodes: Ints, counters: Ints, node: int) -> None:
    nodes[node, COUNT] = 0
    nodes[node, NEXT] = counters[FREE_NODE]
    counters[FREE_NODE] = node
    counters[LIVE] -= 1


@compiled_loop
def _new_group(groups: Ints, counters: Ints, node: int) -> int:
    group = counters[FREE_GROUP] + 0
    if group >= 0:
        counters[FREE_GROUP] = groups[group, FIRST]
    else:
        group = counters[GROUPS] + 0
        counters[GROUPS] = group + 1
    groups[group, FIRST] = node
    groups[group, LAST] = node
    return group


@compiled_loop
def _free_group(groups: Ints, counters: Ints, group: int) -> None:
    groups[group, FIRST] = counters[FREE_GROUP]
    counters[FREE_GROUP] = group


@compiled_loop
def _link(nodes: Ints, node: int, previous: int, next: int) -> None:
    """Insert a node into the sibling list of its parent, between `previous` and `next` (-1: none)."""
    nodes[node, PREVIOUS] = previous
    nodes[node, NEXT] = next
    if previous >= 0:
        nodes[previous, NEXT] = node
    else:
        nodes[nodes[node, PARENT], CHILD] = node
    if next >= 0:
        nodes[next, PREVIOUS] = node
    else:
        nodes[nodes[node, PARENT], TAIL] = node


@compiled_loop
def _unlink(nodes: Ints, node: int) -> None:
    previous, next = nodes[node, PREVIOUS] + 0, nodes[node, NEXT] + 0
    if previous >= 0:
        nodes[previous, NEXT] = next
    else:
        nodes[nodes[node, PARENT], CHILD] = next
    if next >= 0:
        nodes[next, PREVIOUS] = previous
    else:
        nodes[nodes[node, PARENT], TAIL] = previous


@compiled_loop
def _leave_group(nodes: Ints, groups: Ints, counters: Ints, node: int) -> None:
    """Remove a node from its group, but not from the sibling list."""
    group = nodes[node, GROUP]
    if groups[group, FIRST] == groups[group, LAST]:
        _free_group(groups, counters, group)
    elif groups[group, FIRST] == node:
        groups[group, FIRST] = nodes[node, NEXT]
    elif groups[group, LAST] == node:
        groups[group, LAST] = nodes[node, PREVIOUS]


@compiled_loop
def _append(nodes: Ints, groups: Ints, counters: Ints, parent: int, node: int) -> None:
    """Make a node the last child of a parent; its count must not exceed those of the other children."""
    last = nodes[parent, TAIL] + 0
    nodes[node, PARENT] = parent
    _link(nodes, node, last, -1)
    if last >= 0 and nodes[last, COUNT] == nodes[node, COUNT]:
        nodes[node, GROUP] = nodes[last, GROUP]
        groups[nodes[node, GROUP], LAST] = node
    else:
        nodes[node, GROUP] = _new_group(groups, counters, node)


@compiled_loop
def _remove(nodes: Ints, groups: Ints, counters: Ints, node: int) -> None:
    """Remove a node from its group and the sibling list, and free its row."""
    _leave_group(nodes, groups, counters, node)
    _unlink(nodes, node)
    _free_node(nodes, counters, node)


@compiled_loop
def _replace(nodes: Ints, groups: Ints, node: int, other: int) -> None:
    """Replace `other` by `node`, which has the same count, in the sibling list and the group."""
    group = nodes[other, GROUP] + 0
    nodes[node, PARENT] = nodes[other, PARENT]
    nodes[node, GROUP] = group
    if groups[group, FIRST] == other:
        groups[group, FIRST] = node
    if groups[group, LAST] == other:
        groups[group, LAST] = node
    _link(nodes, node, nodes[other, PREVIOUS] + 0, nodes[other, NEXT] + 0)


@compiled_loop
def _increase(nodes: Ints, groups: Ints, counters: Ints, node: int) -> None:
    """Add one to a node's count and restore the order of its siblings."""
    first = groups[nodes[node, GROUP], FIRST] + 0
    _leave_group(nodes, groups, counters, node)
    if first != node:
        _unlink(nodes, node)
        _link(nodes, node, nodes[first, PREVIOUS] + 0, first)
    nodes[node, COUNT] += 1
    previous = nodes[node, PREVIOUS]
    if previous >= 0 and nodes[previous, COUNT] == nodes[node, COUNT]:
        nodes[node, GROUP] = nodes[previous, GROUP]
        groups[nodes[node, GROUP], LAST] = node
    else:
        nodes[node, GROUP] = _new_group(groups, counters, node)


@compiled_loop
def _decrease(nodes: Ints, groups: Ints, counters: Ints, node: int) -> None:
    """Subtract one from a node's count and restore the order of its siblings."""
    last = groups[nodes[node, GROUP], LAST] + 0
    _leave_group(nodes, groups, counters, node)
    if last != node:
        _unlink(nodes, node)
        _link(nodes, node, last, nodes[last, NEXT] + 0)
    nodes[node, COUNT] -= 1
    next = nodes[node, NEXT]
    if next >= 0 and nodes[next, COUNT] == nodes[node, COUNT]:
        nodes[node, GROUP] = nodes[next, GROUP]
        groups[nodes[node, GROUP], FIRST] = node
    else:
        nodes[node, GROUP] = _new_group(groups, counters, node)


@compiled_loop
def _speculate(
    nodes: Ints,
    keys: Longs,
    values: Ints,
    slots: Longs,
    text: Ints,
    context: Ints,
    max_spec_factor: float,
    max_spec_offset: float,
    min_weight: float,
    tree: bool,
    extra_occurrences: int,
    draft: Ints,
    weights: NDArray[np.float64],
):  # -> (int, int, int)
    """Compute the best draft (`SuffixTree.speculate`) into one half of `draft` (2 * max_nodes, 2: token,
    parent) and `weights`.

    Returns the first row of that half, the number of nodes and the length of the matched suffix. Two halves:
    one has the best draft so far, the other the current candidate.
    """
    max_nodes = len(weights) // 2
    first, size, matched, best = 0, 0, 0, 0.0
    for length in range(1, len(context) + 1):
        node, taken = _locate(nodes, keys, values, slots, text, context, len(context) - length)
        if node < 0 or (taken == nodes[node, LENGTH] and nodes[node, CHILD] < 0):
            break  # no continuation of this suffix, so none of longer ones
        budget = min(max_nodes, int(max_spec_factor * length + max_spec_offset))
        other = max_nodes - first
        base_weight = nodes[node, COUNT] / (nodes[node, COUNT] + extra_occurrences)
        if base_weight < min_weight:
            continue
        new, score = _draft(
            nodes, slots, text, node, taken, base_weight, budget, min_weight, tree, draft, weights, other
        )
        if new > 0 and score >= best:
            first, size, matched, best = other, new, length, score
    return first, size, matched


@compiled_loop
def _draft(
    nodes: Ints,
    slots: Longs,
    text: Ints,
    node: int,
    taken: int,
    base_weight: float,
    max_nodes: int,
    min_weight: float,
    tree: bool,
    draft: Ints,
    weights: NDArray[np.float64],
    first: int,
):  # -> (int, float)
    """Best-first search below one matched suffix: fill `draft` and `weights` from row `first` on with the
    nodes of largest weight, or with the chain of most frequent children if `tree` is false.

    The suffix ends after `taken` tokens of the edge above `node`. Returns the number of nodes and the sum of
    their weights.
    """
    # entries: (-weight, order of insertion, node, offset on the edge above it, parent in the draft)
    heap = [(0.0, 0, 0, 0, 0)]
    heap.pop()
    size, inserted, parent, weight, score = 0, 0, -1, base_weight, 0.0
    while True:
        # the path continues with the next token of the edge or, at its end, with the most frequent child
        if taken < nodes[node, LENGTH]:
            heappush(heap, (-weight, inserted, node, taken, parent))
        elif nodes[node, CHILD] >= 0:
            child = nodes[node, CHILD] + 0
            share = weight * (nodes[child, COUNT] / nodes[node, COUNT])
            if share >= min_weight:
                heappush(heap, (-share, inserted, child, 0, parent))
        inserted += 1
        if len(heap) == 0 or size >= max_nodes:
            return size, score
        weight, _, node, taken, parent = heappop(heap)
        weight = -weight
        draft[first + size, 0], draft[first + size, 1] = _token_at(nodes, slots, text, node, taken), parent
        weights[first + size] = weight
        score += weight
        sibling = nodes[node, NEXT] + 0
        if tree and taken == 0 and sibling >= 0:
            above = weights[first + parent] if parent >= 0 else base_weight
            share = above * (nodes[sibling, COUNT] / nodes[nodes[node, PARENT], COUNT])
            if share >= min_weight:
                heappush(heap, (-share, inserted, sibling, 0, parent))
                inserted += 1
        parent, taken = size + 0, taken + 1
        size += 1
