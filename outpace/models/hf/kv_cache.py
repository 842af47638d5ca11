"""The KV cache: every slot holds one sequence at preallocated cache positions, first committed tokens, then
draft nodes.

The j-th node of a row is at cache position `committed + j`, so extending a tree or committing a chain copies
nothing; committing another branch moves the entries of the accepted nodes only. Keys and values of one shape,
of all layers, share a storage, so that one copy moves an entry in all of them.

Letters: P planes of a storage (keys or values of one layer), S slots, H heads, T capacity, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.core.tree import Forest, TokenTree

MAX_SLICED_MASK = 64  # longest chain whose causal mask is a slice of a precomputed mask


@dataclass(frozen=True)
class PlaneShape:
    """Shape, dtype and device of the keys, or of the values, that one layer stores per token."""

    heads: int
    size: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Planes:
    """The division of a cache into storages and planes; a plane holds the keys or values of one layer."""

    shapes: tuple[PlaneShape, ...]  # one per storage
    counts: tuple[int, ...]  # number of planes in each storage
    of_layer: dict[int, tuple[int, int]]  # layer -> indices of its key and value planes, over all storages

    @staticmethod
    def of(layers: dict[int, tuple[PlaneShape, PlaneShape]]) -> Planes:
        """Group the keys and values of all layers into one storage per shape."""
        members: dict[PlaneShape, list[tuple[int, int]]] = {}
        for layer, pair in layers.items():
            for side, shape in enumerate(pair):
                members.setdefault(shape, []).append((layer, side))
        flat = {member: index for index, member in enumerate(m for group in members.values() for m in group)}
        of_layer = {layer: (flat[layer, 0], flat[layer, 1]) for layer in layers}
        return Planes(tuple(members), tuple(len(group) for group in members.values()), of_layer)


class SlotCache:
    """Implementation of core.contracts.Cache in tensors: per slot the keys and values of the committed tokens
    and, until the next commit, of the nodes of one tree."""

    def __init__(self, planes: Planes, slots: int, capacity: int, device: torch.device) -> None:
        self.lengths = [0] * slots
        self.planes = planes
        self.device = device
        self.storages: list[Tensor] = []  # one per shape, (P, S, H, T, D)
        self._allocate(capacity)
        self.tree: TokenTree | None = None  # the tree scored last, not yet committed
        self.slots: tuple[int, ...] = ()  # slots of that tree's rows
        self.read = 0  # number of that tree's nodes whose keys and values are stored

    def _allocate(self, capacity: int) -> None:
        """Allocate `capacity` cache positions per slot and copy the entries of the present storages."""
        before = self.storages
        self.capacity, slots = capacity, len(self.lengths)
        with torch.inference_mode(False):
            self.storages = self._memory(capacity)
        for old, new in zip(before, self.storages, strict=False):
            new[:, :, :, : old.shape[3]] = old
        # planes × (S, H, T, D)
        self.flat = [plane for storage in self.storages for plane in storage.unbind()]
        self._of_slot = [  # per slot and storage a view (P, 1, H, T, D)
            [storage[:, slot : slot + 1] for storage in self.storages] for slot in range(slots)
        ]
        self.count = torch.arange(capacity + 1, device=self.device)  # position ids are slices of it
        self._causal_mask: Tensor | None = None

    def _memory(self, capacity: int) -> list[Tensor]:  # (P, S, H, T, D), one per shape
        slots = len(self.lengths)
        # zeros: masked values are multiplied by 0, and 0 times an uninitialised NaN is NaN
        return [
            torch.zeros(
                count, slots, shape.heads, capacity, shape.size, dtype=shape.dtype, device=shape.device
            )
            for shape, count in zip(self.planes.shapes, self.planes.counts, strict=True)
        ]

    def extend(self, tree: TokenTree, slots: tuple[int, ...]) -> int:
        """Number of this tree's nodes whose keys and values are stored already. ValueError if another tree is
        not yet committed and this one does not extend it."""
        if self.tree is None or self.read == 0:
            return 0
        last, read = self.tree, self.read
        if last is tree:
            return read
        same = slots == self.slots and tree.forest.parents[:read] == last.forest.parents[:read]
        # a tree of roots is on the host, a grown one on the draft model's device
        known = last.tokens[:read].to(tree.tokens.device)
        if not same or not torch.equal(tree.tokens[:read], known):
            raise ValueError(
                "the cache holds nodes of another tree: commit that tree first (with leaf -1 to keep "
                "nothing of it)"
            )
        return read

    def reserve(self, tokens: int) -> None:
        """Enlarge the cache if its slots have fewer than `tokens` cache positions (large drafts only)."""
        if tokens > self.capacity:
            self._allocate(max(tokens, self.capacity * 5 // 4))

    def causal_mask(self, start: int, end: int) -> Tensor:  # (end - start, end) bool
        """The causal mask of tokens at cache positions start to end - 1."""
        if end - start > MAX_SLICED_MASK:
            return self.count[:end] <= self.count[start:end, None]
        if self._causal_mask is None:
            # row i attends to the first capacity + i + 1 positions, so every chain's mask is a slice that
            # ends at its last token
            ones = torch.ones(
                MAX_SLICED_MASK, self.capacity + MAX_SLICED_MASK, dtype=torch.bool, device=self.device
            )
            self._causal_mask = ones.tril(self.capacity)
        shift = self.capacity - start
        return self._causal_mask[: end - start, shift : shift + end]

    def views(self, slot: int, start: int, end: int) -> Sequence[Tensor]:  # planes × (1, H, end - start, D)
        """Views of the entries at cache positions start to end - 1 of one slot, one per plane; no copies."""
        storages = self._of_slot[slot]
        if len(storages) == 1:
            return storages[0].narrow(3, start, end - start).unbind()
        return [view for storage in storages for view in storage.narrow(3, start, end - start).unbind()]

    def commit(self, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        """Keep the entries of the path from each root to its leaf and discard those of the other nodes. Leaf
        -1 keeps no node of that row. AssertionError for a leaf that was not scored."""
        forest, moves = tree.forest, []
        for node, slot in zip(leaf, slots, strict=True):
            if node < 0:
                continue
            if node >= self.read:
                raise AssertionError(
                    f"node {node} cannot be committed: only the first {self.read} nodes were scored"
                )
            length = self.lengths[slot]
            path = _local_path(forest, node)
            moves += [(slot, length + local, length + i) for i, local in enumerate(path) if local != i]
            self.lengths[slot] = length + len(path)
        if moves:
            self._move(moves)
        self.tree, self.read, self.slots = None, 0, ()

    def _move(self, moves: list[tuple[int, int, int]]) -> None:  # (slot, from, to)
        """Move KV cache entries from one position of a slot to a lower one, for keys and values of all
        layers. The moves of a slot are in increasing order, so that no entry is overwritten before it is
        moved."""
        for storage in self.storages:
            if storage.device.type == "cpu":
                # in increasing order, so no entry is overwritten before it is moved
                for slot, source, target in moves:
                    row = storage.select(1, slot)
                    row.select(2, target).copy_(row.select(2, source))
            else:
                slot, source, target = torch.tensor(tuple(zip(*moves, strict=True)), device=storage.device)
                storage[:, slot, :, target] = storage[:, slot, :, source]

    def release(self, slots: Sequence[int]) -> None:
        """Free these slots by setting their lengths to 0."""
        for slot in slots:
            self.lengths[slot] = 0


def _local_path(forest: Forest, node: int) -> list[int]:
    """The path from the root to the node, as indices within its row."""
    local = forest.local
    return [local[n] for n in forest.path(node)]
