"""The order in which a forward processes a forest's new nodes: row by row.

It depends only on the forest's structure, so it is computed once per forest and reused at every step.

Letters: N nodes of this forward, n nodes of one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from outpace.core.tree import CACHED_FORESTS, Forest
from outpace.models.forward.row_inputs import RowInputs


@dataclass(frozen=True, eq=False, slots=True)
class RowLayout:
    """The nodes of one row that are not yet in the KV cache."""

    row: int
    first: int  # number of the row's nodes that are in the KV cache; index of the first new one
    nodes: tuple[int, ...]  # (n,) indices of the new nodes in the forest
    deepest: int  # depth of the deepest new node
    is_chain: bool  # all nodes of the row form one chain, so cache positions equal position ids
    depths: Tensor | None  # (first + n,) int64 depths of all nodes of the row; None for chains
    visible: Tensor | None  # (first + n, first + n) bool tree attention mask of the row; None for chains


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """The nodes of a forest that are not yet in the KV cache, row by row."""

    rows: tuple[RowLayout, ...]  # only rows with new nodes
    # (N,) int64 node indices, counted from the first new node, in the forward's order; None: node order
    order: Tensor | None
    inverse: Tensor | None  # (N,) int64 inverse of `order`: index of each node in the forward's order


def both_ways(inputs: RowInputs, row: RowLayout, also: Sequence[tuple[int, int]]) -> RowInputs:
    """The inputs of a row in which the first node of each of these pairs also attends to the second one, if
    they are new nodes of the row."""
    count = row.first + len(row.nodes)
    local = {node: row.first + index for index, node in enumerate(row.nodes)}
    visible = (
        torch.ones(count, count, dtype=torch.bool).tril() if row.visible is None else row.visible.clone()
    )
    for one, other in also:
        if one in local:
            visible[local[one], local[other]] = True
    depths = torch.arange(count) if row.depths is None else row.depths
    return replace(inputs, depths=depths, visible=visible, top=inputs.base + row.deepest, two_way=True)


@lru_cache(maxsize=CACHED_FORESTS)
def layout_of(forest: Forest, first: int) -> Layout:
    """The layout of the forest's nodes with index `first` and above."""
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
