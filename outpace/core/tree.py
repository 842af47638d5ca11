"""Token trees: the draft trees of all rows of a batch as one forest with consecutively numbered nodes.

The structure is stored on the host as tuples and shared between steps (equal structures are one object), so
that chains and fixed shapes are computed once; tokens and confidence are tensors.

Letters: B rows, N nodes of all trees together, n nodes of one row, S draft nodes of a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from outpace.core.claim import Claim

LONGEST = 64  # longest chain whose forest is cached; longer chains are prompts
# small: trees of fixed shape recur at every step, but variable trees of many rows hardly ever, at some 30 KiB
# each
CACHED_FORESTS = 256


class Forest:
    """The structure of the draft trees of all rows, without tokens.

    The first `num_rows` nodes are the roots, in row order; a node comes after its parent; siblings are in the
    order in which they were drawn. Create forests with `Forest.of` or `Forest.chain`: equal forests are the
    same object while they are in the cache; long chains (prompts) are too large for it.
    """

    def __init__(self, parents: tuple[int, ...], num_rows: int) -> None:
        self.parents = parents  # (N,) index of each node's parent; -1 for roots
        self.num_rows = num_rows

    @staticmethod
    def of(parents: Sequence[int], num_rows: int) -> Forest:
        """The forest with these parents (-1 for the first `num_rows` nodes). ValueError if a node precedes
        its parent."""
        return _forest(tuple(parents), num_rows)

    @staticmethod
    def chain(lengths: tuple[int, ...]) -> Forest:
        """One chain per row, with `lengths[b]` nodes below root b. After the roots, nodes are numbered row by
        row."""
        if max(lengths) > LONGEST:
            return Forest(_chained(lengths), len(lengths))
        # the parents are cached, not the forest: with two caches of forests, equal ones could be two objects
        return _forest(_parents(lengths), len(lengths))

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """(N,) row of each node. ValueError if a node precedes its parent."""
        rows = list(range(self.num_rows))
        try:  # comparing each node with its parent would double the time
            for parent in self.parents[self.num_rows :]:
                rows.append(rows[parent])
        except IndexError:
            raise _disordered(len(rows), self.parents) from None
        return tuple(rows)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """(N,) depth of each node; 0 for roots. ValueError if a node precedes its parent."""
        depths = [0] * self.num_rows
        try:
            for parent in self.parents[self.num_rows :]:
                depths.append(depths[parent] + 1)
        except IndexError:
            raise _disordered(len(depths), self.parents) from None
        return tuple(depths)

    @cached_property
    def local(self) -> tuple[int, ...]:
        """(N,) index of each node within its row, independent of the other rows of the batch."""
        local, count = [], [0] * self.num_rows
        for row in self.rows:
            local.append(count[row])
            count[row] += 1
        return tuple(local)

    @cached_property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """(B,) indices of the nodes of each row, root first."""
        nodes: list[list[int]] = [[] for _ in range(self.num_rows)]
        for node, row in enumerate(self.rows):
            nodes[row].append(node)
        return tuple(tuple(row) for row in nodes)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """(N,) children of each node, in the order in which they were drawn."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node in range(self.num_rows, len(self.parents)):
            children[self.parents[node]].append(node)
        return tuple(tuple(below) for below in children)

    @cached_property
    def is_chain(self) -> bool:
        """Whether no node has more than one child."""
        return len(set(self.parents[self.num_rows :])) == len(self.parents) - self.num_rows

    def path(self, leaf: int) -> list[int]:
        """Indices of the nodes from the root to `leaf`, both included."""
        path = [leaf]
        while (leaf := self.parents[leaf]) >= 0:
            path.append(leaf)
        path.reverse()
        return path

    def visible(self, row: int) -> Tensor:  # (n, n) bool
        """Tree attention mask among the n nodes of one row: [i, j] is True if node j is node i or one of its
        ancestors."""
        return self._visible[row]

    @cached_property
    def _visible(self) -> tuple[Tensor, ...]:
        masks = []
        for nodes in self.nodes:
            # bytes: operations of torch on single rows take ten times as long
            size = len(nodes)
            mask = bytearray(size * size)
            for index, node in enumerate(nodes):
                if index:
                    parent = size * self.local[self.parents[node]]
                    mask[size * index : size * (index + 1)] = mask[parent : parent + size]
                mask[size * index + index] = 1
            masks.append(torch.frombuffer(mask, dtype=torch.bool).view(size, size))
        return tuple(masks)


@lru_cache(maxsize=CACHED_FORESTS)
def _forest(parents: tuple[int, ...], num_rows: int) -> Forest:
    if any(parent != -1 for parent in parents[:num_rows]):
        raise ValueError(f"the first {num_rows} nodes are the roots and have parent -1")
    for node, parent in enumerate(parents):
        if node >= num_rows and not 0 <= parent < node:
            raise _disordered(node, parents)
    return Forest(parents, num_rows)


def _disordered(node: int, parents: Sequence[int]) -> ValueError:
    return ValueError(
        f"node {node} of the forest names parent {parents[node]}; a parent comes before its children"
    )


@lru_cache(maxsize=CACHED_FORESTS)
def _parents(lengths: tuple[int, ...]) -> tuple[int, ...]:
    return _chained(lengths)


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
    """Draft tokens of all rows and their tree structure. Each root is the last committed token of its row,
    whose KV entries are not yet in the target's cache."""

    tokens: Tensor  # (N,) int64
    forest: Forest
    confidence: Tensor | None = (
        None  # (N,) float32 log of each node's draft probability given its parent; for ranking only
    )
    claim: Claim | None = None  # distributions from which the tokens were drawn; None: verify by matching
    _listed: list[int] | None = field(default=None, init=False, repr=False)  # `token_list`, once it is known

    def token_list(self) -> list[int]:  # (N,)
        """The tokens on the host. Of a tree on an accelerator they are read once, as that waits for it."""
        if self._listed is None:
            object.__setattr__(self, "_listed", self.tokens.tolist())
        assert self._listed is not None
        return self._listed

    def __len__(self) -> int:
        return len(self.forest)

    @staticmethod
    def roots(tokens: Tensor) -> TokenTree:  # (B,) -> N = B
        """A tree of roots only, for a step without draft tokens."""
        return TokenTree(tokens, Forest.chain((0,) * len(tokens)))

    def first_chain(self) -> TokenTree:
        """The tree reduced to the first child of every node, for targets that score chains only. ValueError
        if the tree has a claim and is not a chain: q is not the distribution of a selection of the tokens."""
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

    def only(self, nodes: Sequence[int], rows: Sequence[int] | None = None) -> TokenTree:
        """The tree of these nodes, renumbered in this order: first the roots of `rows` (None: of all rows),
        and with each node its parent. A claim keeps all rows of q."""
        place = {node: index for index, node in enumerate(nodes)} | {-1: -1}
        num_rows = self.forest.num_rows if rows is None else len(rows)
        forest = Forest.of([place[self.forest.parents[node]] for node in nodes], num_rows)
        confidence = None if self.confidence is None else self.confidence[list(nodes)]
        claim = None if self.claim is None else self.claim.only(nodes)
        return TokenTree(self.tokens[list(nodes)], forest, confidence, claim)

    def below(self, roots: Sequence[int]) -> TokenTree:
        """What is left of the tree below these nodes once they are committed: a tree with a row for each, of
        which they are the roots. A claim keeps all rows of q."""
        rows = {root: row for row, root in enumerate(roots)}  # node -> row of the new tree
        for node in range(self.forest.num_rows, len(self.forest)):
            if (above := rows.get(self.forest.parents[node])) is not None:
                rows.setdefault(node, above)
        nodes = [*roots, *(node for node in rows if node not in roots)]
        place = {node: index for index, node in enumerate(nodes)}
        parents = [-1] * len(roots) + [place[self.forest.parents[node]] for node in nodes[len(roots) :]]
        confidence = None if self.confidence is None else self.confidence[nodes]
        claim = None if self.claim is None else self.claim.below(nodes, len(roots))
        return TokenTree(self.tokens[nodes], Forest.of(parents, len(roots)), confidence, claim)

    def within(self, stops: Sequence[Sequence[int]]) -> TokenTree:
        """The tree without the nodes below stop tokens; itself if there are none. `stops` (B,): the stop
        tokens of each row. Only a node's ancestors decide whether it is removed, so claims stay true."""
        forest, tokens = self.forest, self.token_list()
        if {token for row_stops in stops for token in row_stops}.isdisjoint(tokens[forest.num_rows :]):
            return self
        kept, is_open = list(range(forest.num_rows)), [True] * forest.num_rows
        for node in range(forest.num_rows, len(forest)):
            reached = is_open[forest.parents[node]]
            is_open.append(reached and tokens[node] not in stops[forest.rows[node]])
            if reached:
                kept.append(node)
        return self if len(kept) == len(forest) else self.only(kept)

    def match(self, continuations: Sequence[Sequence[int]]) -> list[int]:
        """(B,) deepest node of each row whose path is a prefix of the row's continuation, the tokens after
        its root; the root if the first token differs."""
        tokens, children = self.token_list(), self.forest.children
        deepest = []
        for root, continuation in enumerate(continuations):
            level = [root]  # several nodes if siblings drawn with replacement have the same token
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

    parents: tuple[int, ...]  # (S,) parents of draft nodes 1 to S, in order of depth; 0 is the root

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
        """The shape in which every node at depth d has `widths[d]` children."""
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
        """(S + 1,) children of each node of the shape, the root included."""
        children: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]
        for node, parent in enumerate(self.parents, 1):
            children[parent].append(node)
        return tuple(tuple(below) for below in children)

    @property
    def depth(self) -> int:
        """Number of draft nodes on the longest path."""
        depth, node = 0, len(self.parents)
        while node:
            node, depth = self.parents[node - 1], depth + 1
        return depth
