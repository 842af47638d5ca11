"""The order in which recurrent layers read a row's draft tree: its trunk, then level by level.

A recurrent layer reads a node from the states after its parent, so the nodes of one level do not depend on
one another: they are a batch of texts of one token each.

Letters: n nodes of one row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.models.eager.recurrent_cache import Record
from outpace.models.eager.recurrent_layer import Siblings, TreeReading
from outpace.models.forward.row_inputs import RowInputs


def parents_of(visible: Tensor) -> list[int]:  # (n, n) bool -> (n,)
    """Each node's parent: the last of the nodes before it that it attends to. -1 for the root."""
    numbers = torch.arange(1, len(visible) + 1)
    return ((visible.tril(-1) * numbers).amax(1) - 1).tolist()


def trunk_and_levels(parents: Sequence[int], first: int) -> tuple[int, list[list[int]]]:  # (n,)
    """The nodes that must be read so that the states before every node from `first` on are known. Returns the
    number of nodes in the trunk, the first nodes that are on all their paths, and the other ones by level.
    Nodes before `first` are among them if later ones descend from them."""
    needed = set(range(first, len(parents)))
    for node in range(len(parents) - 1, 0, -1):
        if node in needed:
            needed.add(parents[node])
    children: list[list[int]] = [[] for _ in parents]
    for node in sorted(needed)[1:]:
        children[parents[node]].append(node)
    trunk = 1
    while children[trunk - 1] == [trunk]:
        trunk += 1
    levels, level = list[list[int]](), [trunk - 1]
    while level := [child for node in level for child in children[node]]:
        levels.append(level)
    return trunk, levels


def tree_reading(row: RowInputs, records: Sequence[Record]) -> tuple[int, TreeReading] | None:
    """The cache position after a row's trunk, and how recurrent layers read its new nodes; None for a chain.
    `records`: of the row's slot, in earlier forwards."""
    if row.visible is None:
        return None
    parents = parents_of(row.visible)
    trunk, levels = trunk_and_levels(parents, max(0, row.start - row.base))
    end = row.base + trunk
    read, place = list(range(row.start, end)), {trunk - 1: 0}  # node -> index of its states in its level
    siblings = list[list[Siblings]]()
    for level in levels:
        at = [row.base + node for node in level]
        spans = [(old.start, min(old.end, row.start), old.calls) for old in records]
        groups = list[Siblings]()
        above, place = place, dict[int, int]()
        for start, stop, calls in (*spans, (row.start, row.end, None)):
            nodes = [node for node, position in zip(level, at, strict=True) if start <= position < stop]
            if nodes:
                tokens = torch.tensor([row.base + node - start for node in nodes])
                groups.append(Siblings(tokens, torch.tensor([above[parents[node]] for node in nodes]), calls))
                place |= {node: len(place) + index for index, node in enumerate(nodes)}
                read += [row.base + node for node in nodes] if calls is None else []
        siblings.append(groups)
    places = torch.tensor(read).argsort()
    return end, TreeReading(max(0, end - row.start), siblings, places)
