"""Token trees: the draft of every row of a batch as one flat forest of nodes.

The structure lives on the host as tuples and is shared between steps (equal structures are one object), so
that chains and fixed shapes are computed once; tokens and confidence are tensors.

Letters: B rows, N nodes of all trees together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from outpace.core.claim import Claim

LONGEST = 64  # longest chain that is cached: longer ones are prompts


class Forest:
    """The structure of the trees of all rows, without tokens.

    The first `num_rows` nodes are the roots, in row order; a node comes after its parent; siblings are in the
    order in which they were drawn. Make one with `Forest.of` or `Forest.chain`: equal forests are the same
    object, except for prompts, which are too large to cache.
    """

    def __init__(self, parents: tuple[int, ...], num_rows: int) -> None:
        self.parents = parents  # (N,) -1 for roots
        self.num_rows = num_rows

    @staticmethod
    def of(parents: Sequence[int], num_rows: int) -> Forest:
        """The forest with these parents (-1 for the first `num_rows` nodes)."""
        return _forest(tuple(parents), num_rows)

    @staticmethod
    def chain(lengths: tuple[int, ...]) -> Forest:
        """One chain a row, `lengths[b]` nodes below root b; after the roots the rows follow one another."""
        return _chain(lengths) if max(lengths) <= LONGEST else Forest(_chained(lengths), len(lengths))

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """(N,) the row of each node."""
        rows = list(range(self.num_rows))
        for parent in self.parents[self.num_rows :]:
            rows.append(rows[parent])
        return tuple(rows)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """(N,) edges from the root; 0 for roots."""
        depths = [0] * self.num_rows
        for parent in self.parents[self.num_rows :]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def local(self) -> tuple[int, ...]:
        """(N,) index of each node within its row: the same whatever else is in the batch."""
        local, count = [], [0] * self.num_rows
        for row in self.rows:
            local.append(count[row])
            count[row] += 1
        return tuple(local)

    @cached_property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """Per row the indices of its nodes, root first."""
        nodes: list[list[int]] = [[] for _ in range(self.num_rows)]
        for node, row in enumerate(self.rows):
            nodes[row].append(node)
        return tuple(tuple(row) for row in nodes)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Per node its children in the order they were drawn."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node in range(self.num_rows, len(self.parents)):
            children[self.parents[node]].append(node)
        return tuple(tuple(below) for below in children)

    @cached_property
    def is_chain(self) -> bool:
        """No node has two children."""
        return len(set(self.parents[self.num_rows :])) == len(self.parents) - self.num_rows

    def path(self, leaf: int) -> list[int]:
        """Nodes from the root to the leaf, both included."""
        path = [leaf]
        while (leaf := self.parents[leaf]) >= 0:
            path.append(leaf)
        path.reverse()
        return path

    def visible(self, row: int) -> Tensor:  # (n, n) bool
        """Tree attention mask: which of the row's nodes (columns) each node (rows) attends to, its ancestors
        and itself."""
        return self._visible[row]

    @cached_property
    def _visible(self) -> tuple[Tensor, ...]:
        masks = []
        for nodes in self.nodes:
            mask = torch.eye(len(nodes), dtype=torch.bool)
            for index, node in enumerate(nodes[1:], 1):
                mask[index] |= mask[self.local[self.parents[node]]]
            masks.append(mask)
        return tuple(masks)


@lru_cache(maxsize=4096)
def _forest(parents: tuple[int, ...], num_rows: int) -> Forest:
    if any(parent != -1 for parent in parents[:num_rows]):
        raise ValueError(f"the first {num_rows} nodes are the roots and have parent -1")
    if any(not 0 <= parent < node for node, parent in enumerate(parents) if node >= num_rows):
        raise ValueError("a node comes after its parent")
    return Forest(parents, num_rows)


@lru_cache(maxsize=1024)
def _chain(lengths: tuple[int, ...]) -> Forest:
    return Forest.of(_chained(lengths), len(lengths))


def _chained(lengths: tuple[int, ...]) -> tuple[int, ...]:
    parents = [-1] * len(lengths)
    for root, length in enumerate(lengths):
        previous = root
        for _ in range(length):
            parents.append(previous)
            previous = len(parents) - 1
    return tuple(parents)


@dataclass(frozen=True, eq=False, slots=True)
class TokenTree:
    """Draft tokens of all rows; each root is the last committed token of its row, not yet in the target's KV
    cache."""

    tokens: Tensor  # (N,) int64
    forest: Forest
    confidence: Tensor | None = (
        None  # (N,) float32 log of the draft probability of the node given its parent; for ranking only
    )
    claim: Claim | None = None  # what verification may assume about how the tokens were made

    def __len__(self) -> int:
        return len(self.forest)

    @staticmethod
    def roots(tokens: Tensor) -> TokenTree:  # (B,) -> N = B
        """Only the roots: a step without a draft."""
        return TokenTree(tokens, Forest.chain((0,) * len(tokens)))

    def first_chain(self) -> TokenTree:
        """The first child at every node and no other, for targets that read chains only. ValueError if that
        drops a drawn token: dropping it voids the claim of the others."""
        if self.forest.is_chain:
            return self
        if self.claim is not None:
            raise ValueError(
                "this target reads drafts that are chains, and the method drew a tree: use a method that "
                "drafts chains, "
                "such as speculative-sampling or prompt-lookup, or temperature 0"
            )
        rows, nodes, lengths = self.forest.num_rows, list(range(self.forest.num_rows)), list[int]()
        for root in range(rows):
            node, length = root, 0
            while below := self.forest.children[node]:
                node, length = below[0], length + 1
                nodes.append(node)
            lengths.append(length)
        confidence = None if self.confidence is None else self.confidence[nodes]
        return TokenTree(self.tokens[nodes], Forest.chain(tuple(lengths)), confidence)

    def match(self, continuations: Sequence[Sequence[int]]) -> list[int]:
        """Per row the deepest node whose path agrees with the tokens after the root; the root if the first
        differs."""
        tokens, children = self.tokens.tolist(), self.forest.children
        deepest = []
        for root, continuation in enumerate(continuations):
            level = [root]  # several nodes where independent draws gave the same token
            for token in continuation:
                below = [child for node in level for child in children[node] if tokens[child] == token]
                if not below:
                    break
                level = below
            deepest.append(level[0])
        return deepest


@dataclass(frozen=True)
class Shape:
    """A fixed tree for one row: `parents[i]` is the parent of draft node i + 1, node 0 being the root."""

    parents: tuple[int, ...]  # (S,) in growing order of depth

    def __post_init__(self) -> None:
        depths = [0]
        for node, parent in enumerate(self.parents, 1):
            if not 0 <= parent < node:
                raise ValueError(
                    f"node {node} of the shape names parent {parent}; a parent comes before its children"
                )
            depths.append(depths[parent] + 1)
        if depths != sorted(depths):
            raise ValueError("the nodes of a shape stand in growing order of depth")

    @staticmethod
    def branching(widths: Sequence[int]) -> Shape:
        """Every node at depth d has `widths[d]` children."""
        parents: list[int] = []
        level = [0]
        for width in widths:
            above, level = level, []
            for parent in above:
                for _ in range(width):
                    parents.append(parent)
                    level.append(len(parents))
        return Shape(tuple(parents))

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """(S + 1,) per node of the shape, the root included, its children."""
        children: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]
        for node, parent in enumerate(self.parents, 1):
            children[parent].append(node)
        return tuple(tuple(below) for below in children)

    @property
    def depth(self) -> int:
        """Edges on its longest path."""
        depth, node = 0, len(self.parents)
        while node:
            node, depth = self.parents[node - 1], depth + 1
        return depth
