"""The order in which recurrent layers read a row's draft tree: up to its root, then level by level.

A recurrent layer reads a node from the states after its parent, so the nodes of one level do not depend on
one another: they are a batch of texts of one token each.

Letters: n nodes of one row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outpace.models.eager.recurrent_cache import Record
from outpace.models.eager.recurrent_layer import MOST_OUTPUTS, Siblings, TreeReading
from outpace.models.eager.tree_product import NodesOfTree
from outpace.models.forward.row_inputs import RowInputs


def parents_of(visible: Tensor) -> list[int]:  # (n, n) bool -> (n,)
    """Each node's parent: the last of the nodes before it that it attends to. -1 for the root."""
    numbers = torch.arange(1, len(visible) + 1)
    return ((visible.tril(-1) * numbers).amax(1) - 1).tolist()


def levels_below_root(parents: Sequence[int], first: int) -> list[list[int]]:  # (n,)
    """The nodes below the root that must be read so that the states before every node from `first` on are
    known, by level. Nodes before `first` are among them if later ones descend from them."""
    needed = set(range(first, len(parents)))
    for node in range(len(parents) - 1, 0, -1):
        if node in needed:
            needed.add(parents[node])
    children: list[list[int]] = [[] for _ in parents]
    for node in sorted(needed)[1:]:
        children[parents[node]].append(node)
    levels, level = list[list[int]](), [0]
    while level := [child for node in level for child in children[node]]:
        levels.append(level)
    return levels


def chain_as_tree(row: RowInputs) -> RowInputs:
    """A row with a drafted chain as that of a tree without branches; other rows as they are. The root must be
    read with the draft: of a chain that is drafted in several forwards, each reads one token."""
    size = row.end - row.base
    if row.visible is not None or row.start > row.base or not 1 < size <= MOST_OUTPUTS:
        return row
    return replace(row, depths=torch.arange(size), visible=torch.ones(size, size, dtype=torch.bool).tril())


def tree_reading(
    row: RowInputs, records: Sequence[Record], products: Collection[int] = ()
) -> TreeReading | None:
    """How recurrent layers read the new nodes of a row; None for a chain. `records`: of the row's slot, in
    earlier forwards. `products`: layers that can read a tree at once."""
    if row.visible is None:
        return None
    parents = parents_of(row.visible)
    levels = levels_below_root(parents, max(0, row.start - row.base))
    trunk = max(0, row.base + 1 - row.start)
    read = list(range(row.start, row.start + trunk))
    place = {0: 0}  # node -> index of its states among those of its level
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
    nodes = None
    if products and all(each.calls is None for level in siblings for each in level):
        order = {node: index for index, node in enumerate([node for level in levels for node in level])}
        nodes = NodesOfTree([order.get(parents[node], -1) for node in order])
    return TreeReading(trunk, siblings, torch.tensor(read).argsort(), nodes, products)
