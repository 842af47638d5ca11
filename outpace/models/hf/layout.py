"""The order of a forest's new nodes in one forward: row by row.

It depends on the forest's structure alone, so it is computed once per forest and reused at every step.

Letters: N nodes of this forward, n nodes of one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from outpace.core.tree import Forest


@dataclass(frozen=True, eq=False, slots=True)
class RowLayout:
    """The new nodes of one row."""

    row: int
    first: int  # index of the first one within the row: how many of the row's nodes are in the cache
    nodes: tuple[int, ...]  # (n,) indices in the forest
    deepest: int  # depth of the deepest of them
    is_chain: bool  # all nodes of the row so far form one chain, so cache positions are position ids
    depths: Tensor | None  # (first + n,) int64 of all the row's nodes so far; None for chains
    visible: Tensor | None  # (first + n, first + n) bool, of all of them; None for chains


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """The new nodes of a forest by row."""

    rows: tuple[RowLayout, ...]  # rows with new nodes
    order: (
        Tensor | None
    )  # (N,) int64 node minus the first new one, in the order of the forward; None: in node order
    places: Tensor | None  # (N,) int64 the inverse: index of each node in the order of the forward


@lru_cache(maxsize=4096)
def layout_of(forest: Forest, first: int) -> Layout:
    """The layout of the nodes from `first` on."""
    rows: list[RowLayout] = []
    for row, nodes in enumerate(forest.nodes):
        read = sum(node < first for node in nodes)
        if read == len(nodes):
            continue
        depths = [forest.depths[node] for node in nodes]
        is_chain = depths == list(range(len(nodes)))
        rows.append(
            RowLayout(
                row,
                read,
                nodes[read:],
                max(depths[read:]),
                is_chain,
                None if is_chain else torch.tensor(depths),
                None if is_chain else forest.visible(row),
            )
        )
    order = [node - first for row in rows for node in row.nodes]
    if order == list(range(len(order))):
        return Layout(tuple(rows), None, None)
    packed = torch.tensor(order)
    return Layout(tuple(rows), packed, packed.argsort())
