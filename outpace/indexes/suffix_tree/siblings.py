"""Children of tree nodes in order of their counts, kept so in constant time a change.

Siblings of equal count stand together as a group, whose ends are known: a node whose count changes by one goes to an
end of its group and joins the next. Nodes and groups that are given back are used again first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.compiled_loops import loop

Ints = NDArray[np.int32]
# columns of a node; what its edge says is text of a request
COUNT, SLOT, START, LENGTH, PARENT, CHILD, TAIL, NEXT, PREVIOUS, GROUP = range(10)
FIRST, LAST = 0, 1  # of a group
# of the tree itself: how many rows were ever used, how many are in use, and the first of those given back
NODES, LIVE, FREE_NODE, GROUPS, FREE_GROUP = range(5)


@loop
def new_node(nodes: Ints, known: Ints) -> int:
    node = known[FREE_NODE] + 0
    if node >= 0:
        known[FREE_NODE] = nodes[node, NEXT]
    else:
        node = known[NODES] + 0
        known[NODES] = node + 1
    known[LIVE] += 1
    nodes[node, CHILD] = -1
    nodes[node, TAIL] = -1
    return node


@loop
def free_node(nodes: Ints, known: Ints, node: int) -> None:
    nodes[node, COUNT] = 0
    nodes[node, NEXT] = known[FREE_NODE]
    known[FREE_NODE] = node
    known[LIVE] -= 1


@loop
def new_group(groups: Ints, known: Ints, node: int) -> int:
    group = known[FREE_GROUP] + 0
    if group >= 0:
        known[FREE_GROUP] = groups[group, FIRST]
    else:
        group = known[GROUPS] + 0
        known[GROUPS] = group + 1
    groups[group, FIRST] = node
    groups[group, LAST] = node
    return group


@loop
def free_group(groups: Ints, known: Ints, group: int) -> None:
    groups[group, FIRST] = known[FREE_GROUP]
    known[FREE_GROUP] = group


@loop
def link(nodes: Ints, node: int, previous: int, next: int) -> None:
    """Put a node between two siblings, -1 for none, below its parent."""
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


@loop
def unlink(nodes: Ints, node: int) -> None:
    previous, next = nodes[node, PREVIOUS] + 0, nodes[node, NEXT] + 0
    if previous >= 0:
        nodes[previous, NEXT] = next
    else:
        nodes[nodes[node, PARENT], CHILD] = next
    if next >= 0:
        nodes[next, PREVIOUS] = previous
    else:
        nodes[nodes[node, PARENT], TAIL] = previous


@loop
def leave(nodes: Ints, groups: Ints, known: Ints, node: int) -> None:
    """Take a node out of its group; it stays where it is among its siblings."""
    group = nodes[node, GROUP]
    if groups[group, FIRST] == groups[group, LAST]:
        free_group(groups, known, group)
    elif groups[group, FIRST] == node:
        groups[group, FIRST] = nodes[node, NEXT]
    elif groups[group, LAST] == node:
        groups[group, LAST] = nodes[node, PREVIOUS]


@loop
def append(nodes: Ints, groups: Ints, known: Ints, parent: int, node: int) -> None:
    """Make a node whose count is the lowest there is the last child."""
    last = nodes[parent, TAIL] + 0
    nodes[node, PARENT] = parent
    link(nodes, node, last, -1)
    if last >= 0 and nodes[last, COUNT] == nodes[node, COUNT]:
        nodes[node, GROUP] = nodes[last, GROUP]
        groups[nodes[node, GROUP], LAST] = node
    else:
        nodes[node, GROUP] = new_group(groups, known, node)


@loop
def remove(nodes: Ints, groups: Ints, known: Ints, node: int) -> None:
    """Take a node away from its siblings, and give it back."""
    leave(nodes, groups, known, node)
    unlink(nodes, node)
    free_node(nodes, known, node)


@loop
def take_place(nodes: Ints, groups: Ints, node: int, other: int) -> None:
    """Put a node where another of the same count is, which then is nowhere."""
    group = nodes[other, GROUP] + 0
    nodes[node, PARENT] = nodes[other, PARENT]
    nodes[node, GROUP] = group
    if groups[group, FIRST] == other:
        groups[group, FIRST] = node
    if groups[group, LAST] == other:
        groups[group, LAST] = node
    link(nodes, node, nodes[other, PREVIOUS] + 0, nodes[other, NEXT] + 0)


@loop
def increase(nodes: Ints, groups: Ints, known: Ints, node: int) -> None:
    """Count one more."""
    first = groups[nodes[node, GROUP], FIRST] + 0
    leave(nodes, groups, known, node)
    if first != node:
        unlink(nodes, node)
        link(nodes, node, nodes[first, PREVIOUS] + 0, first)
    nodes[node, COUNT] += 1
    previous = nodes[node, PREVIOUS]
    if previous >= 0 and nodes[previous, COUNT] == nodes[node, COUNT]:
        nodes[node, GROUP] = nodes[previous, GROUP]
        groups[nodes[node, GROUP], LAST] = node
    else:
        nodes[node, GROUP] = new_group(groups, known, node)


@loop
def decrease(nodes: Ints, groups: Ints, known: Ints, node: int) -> None:
    """Count one less."""
    last = groups[nodes[node, GROUP], LAST] + 0
    leave(nodes, groups, known, node)
    if last != node:
        unlink(nodes, node)
        link(nodes, node, last, nodes[last, NEXT] + 0)
    nodes[node, COUNT] -= 1
    next = nodes[node, NEXT]
    if next >= 0 and nodes[next, COUNT] == nodes[node, COUNT]:
        nodes[node, GROUP] = nodes[next, GROUP]
        groups[nodes[node, GROUP], FIRST] = node
    else:
        nodes[node, GROUP] = new_group(groups, known, node)
