"""Growing, shrinking and reading a counted suffix tree.

Every suffix of a request was walked down from the root, and the tree counts at each edge how many walks entered it.
Walks end at nodes only, so all that entered an edge went through: an edge has one count. Its text is that of the
newest request that went through, which is the last of them to be evicted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.compiled_loops import loop
from outpace.indexes.suffix_tree.siblings import (
    CHILD,
    COUNT,
    GROUP,
    LENGTH,
    PARENT,
    SLOT,
    START,
    append,
    decrease,
    free_group,
    free_node,
    increase,
    new_node,
    remove,
    take_place,
)
from outpace.indexes.tables import hash_map
from outpace.indexes.tables.hash_map import find, put

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
BASE, SIZE, ROOM, ORDER, ACTIVE = range(
    5
)  # of a slot: its request's text, when it came, and how many walks go on
ROOT = 0
drop = hash_map.remove


@loop
def token_at(nodes: Ints, slots: Longs, text: Ints, node: int, offset: int) -> int:
    """A token of the edge above a node."""
    return int(text[slots[nodes[node, SLOT], BASE] + nodes[node, START] + offset])


@loop
def extend(
    nodes: Ints,
    groups: Ints,
    keys: Longs,
    values: Ints,
    known: Ints,
    slots: Longs,
    text: Ints,
    active: Ints,
    slot: int,
    tokens: Ints,
) -> None:
    """Let all suffixes of a request that are shorter than the depth go on by these tokens."""
    depth = active.shape[1]
    for token in tokens:
        place = slots[slot, SIZE] + 0
        text[slots[slot, BASE] + place] = token
        slots[slot, SIZE] = place + 1
        num = min(slots[slot, ACTIVE] + 1, depth)
        for length in range(num, 0, -1):
            node = active[slot, length - 2] + 0 if length > 1 else ROOT
            if node != ROOT and nodes[node, COUNT] == 1:
                nodes[node, LENGTH] += 1  # nobody else came so far
            else:
                node = _step(nodes, groups, keys, values, known, slots, text, slot, node, token, place)
            active[slot, length - 1] = node
        slots[slot, ACTIVE] = num


@loop
def _step(
    nodes: Ints,
    groups: Ints,
    keys: Longs,
    values: Ints,
    known: Ints,
    slots: Longs,
    text: Ints,
    slot: int,
    node: int,
    token: int,
    place: int,
) -> int:
    """Where a walk of the request in `slot` stands after the token at `place`, if not only it came so far."""
    child = find(keys, values, (node << 32) | token)
    if child < 0:
        child = new_node(nodes, known)
        nodes[child, COUNT] = 1
        nodes[child, SLOT], nodes[child, START], nodes[child, LENGTH] = slot, place, 1
        append(nodes, groups, known, node, child)
        put(keys, values, (node << 32) | token, child)
        return child
    if node != ROOT and nodes[node, COUNT] == nodes[child, COUNT] + 1:
        # this was the only walk that stood here, and it goes where all went
        if nodes[child, LENGTH] > 1:
            nodes[node, LENGTH] += 1
            nodes[child, START] += 1
            nodes[child, LENGTH] -= 1
            drop(keys, values, (node << 32) | token)
            put(keys, values, (node << 32) | token_at(nodes, slots, text, child, 0), child)
            return node
        nodes[child, COUNT] += 1
        _point(nodes, slots, child, slot, place)
        _join(nodes, groups, keys, values, known, slots, text, node, child)
        return child
    if nodes[child, LENGTH] > 1:
        child = _divide(nodes, groups, keys, values, known, slots, text, node, child)
    increase(nodes, groups, known, child)
    _point(nodes, slots, child, slot, place)
    return child


@loop
def _point(nodes: Ints, slots: Longs, node: int, slot: int, place: int) -> None:
    """Let an edge of one token have its text from this request, if that is the newest on it."""
    if slots[slot, ORDER] >= slots[nodes[node, SLOT], ORDER]:
        nodes[node, SLOT] = slot
        nodes[node, START] = place


@loop
def _divide(
    nodes: Ints,
    groups: Ints,
    keys: Longs,
    values: Ints,
    known: Ints,
    slots: Longs,
    text: Ints,
    node: int,
    child: int,
) -> int:
    """Put a node behind the first token of the edge between two others; it has the lower one's count."""
    middle = new_node(nodes, known)
    nodes[middle, COUNT] = nodes[child, COUNT]
    nodes[middle, SLOT], nodes[middle, START], nodes[middle, LENGTH] = (
        nodes[child, SLOT],
        nodes[child, START],
        1,
    )
    put(keys, values, (node << 32) | token_at(nodes, slots, text, child, 0), middle)
    take_place(nodes, groups, middle, child)
    nodes[child, START] += 1
    nodes[child, LENGTH] -= 1
    append(nodes, groups, known, middle, child)
    put(keys, values, (middle << 32) | token_at(nodes, slots, text, child, 0), child)
    return middle


@loop
def _join(
    nodes: Ints,
    groups: Ints,
    keys: Longs,
    values: Ints,
    known: Ints,
    slots: Longs,
    text: Ints,
    node: int,
    child: int,
) -> None:
    """Let an only child of its parent's count take the edge of both."""
    drop(keys, values, (node << 32) | token_at(nodes, slots, text, child, 0))
    free_group(groups, known, nodes[child, GROUP])
    take_place(nodes, groups, child, node)
    # whoever went along the child's edge came along the parent's
    nodes[child, START] -= nodes[node, LENGTH]
    nodes[child, LENGTH] += nodes[node, LENGTH]
    put(keys, values, (nodes[child, PARENT] << 32) | token_at(nodes, slots, text, child, 0), child)
    free_node(nodes, known, node)


@loop
def evict(
    nodes: Ints,
    groups: Ints,
    keys: Longs,
    values: Ints,
    known: Ints,
    slots: Longs,
    text: Ints,
    active: Ints,
    slot: int,
) -> None:
    """Take back every walk of a request."""
    depth, base, size = active.shape[1], slots[slot, BASE], slots[slot, SIZE]
    path = [0] * depth
    for start in range(size):
        end = min(start + depth, size)
        node, place, num = ROOT, start + 0, 0
        while place < end:
            node = find(keys, values, (node << 32) | text[base + place])
            path[num] = node
            num += 1
            place += nodes[node, LENGTH]
        if nodes[node, COUNT] == 1:
            num -= 1
            drop(keys, values, (nodes[node, PARENT] << 32) | token_at(nodes, slots, text, node, 0))
            remove(nodes, groups, known, node)
        for index in range(num):
            decrease(nodes, groups, known, path[index])
        for index in range(num - 1, -1, -1):
            child = nodes[path[index], CHILD]
            if child >= 0 and nodes[child, COUNT] == nodes[path[index], COUNT]:
                _join(nodes, groups, keys, values, known, slots, text, path[index], child)


@loop
def locate(
    nodes: Ints, keys: Longs, values: Ints, slots: Longs, text: Ints, tokens: Ints, first: int
):  # -> (int, int)
    """The node below the edge on which tokens[first:] end, and how much of the edge they take; (-1, 0): nowhere."""
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
