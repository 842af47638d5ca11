"""The KV cache: every slot holds one sequence at consecutive cache positions, first committed tokens, then
draft nodes.

The j-th node of a row is at cache position `committed + j`, so extending a tree or committing a chain copies
nothing; committing another branch moves the entries of the accepted nodes only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outpace.core.tree import Forest, TokenTree

MAX_SLICED_MASK = 64  # longest chain whose causal mask is a slice of a precomputed mask
PIECES = 8  # most storages per shape of planes in a cache whose slots grow with their texts


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

    shapes: tuple[PlaneShape, ...]  # one per storage; several storages may have the same shape
    counts: tuple[int, ...]  # number of planes in each storage
    of_layer: dict[int, tuple[int, int]]  # layer -> indices of its key and value planes, over all storages
    state_bytes: int = 0  # memory of the states of recurrent layers after one token

    @property
    def token_bytes(self) -> int:
        """Memory of the keys and values of one token, in bytes."""
        return sum(
            count * shape.heads * shape.size * shape.dtype.itemsize
            for shape, count in zip(self.shapes, self.counts, strict=True)
        )

    @property
    def largest_share(self) -> float:
        """Share of the largest storage in the memory of a token."""
        sizes = [
            count * shape.heads * shape.size * shape.dtype.itemsize
            for shape, count in zip(self.shapes, self.counts, strict=True)
        ]
        return max(sizes, default=0) / max(1, sum(sizes))

    def divided(self) -> Planes:
        """The same planes in up to PIECES storages per shape, which are enlarged one after the other, so that
        only one storage at a time exists twice, old and enlarged."""
        shapes, counts = list[PlaneShape](), list[int]()
        for shape, count in zip(self.shapes, self.counts, strict=True):
            size = -(-count // PIECES)
            parts = [min(size, count - begin) for begin in range(0, count, size)]
            shapes += [shape] * len(parts)
            counts += parts
        return replace(self, shapes=tuple(shapes), counts=tuple(counts))

    def only(self, layers: Collection[int]) -> tuple[Planes, list[int]]:
        """The planes of these layers only, in the same order, and their indices among all planes."""
        pairs = {layer: pair for layer, pair in self.of_layer.items() if layer in layers}
        kept = sorted(index for pair in pairs.values() for index in pair)
        place = {index: own for own, index in enumerate(kept)}
        shape_of = [
            shape for shape, count in zip(self.shapes, self.counts, strict=True) for _ in range(count)
        ]
        counts = Counter(shape_of[index] for index in kept)
        of_layer = {layer: (place[key], place[value]) for layer, (key, value) in pairs.items()}
        return Planes(tuple(counts), tuple(counts.values()), of_layer), kept

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
    """Implementation of core.contracts.Cache: per slot the keys and values of the committed tokens and, until
    the next commit, of the nodes of one tree. Subclasses hold the memory."""

    def __init__(self, planes: Planes, capacity: int, device: torch.device) -> None:
        self.lengths: list[int] = []
        self.planes = planes
        self.capacity = capacity
        self.device = device
        self.tree: TokenTree | None = None  # the tree scored last, not yet committed
        self.slots: tuple[int, ...] = ()  # slots of that tree's rows
        self.read = 0  # number of that tree's nodes whose keys and values are stored

    @property
    def num_bytes(self) -> int:
        return self.bytes_for({})

    def slot_bytes(self, slot: int, tokens: int) -> int:
        raise NotImplementedError

    def bytes_for(self, tokens: Mapping[int, int]) -> int:
        raise NotImplementedError

    def grow(self, slots: int) -> None:
        self.lengths += [0] * (slots - len(self.lengths))

    def reserve(self, slot: int, tokens: int) -> None:
        """Give a slot memory for at least `tokens` cache positions."""
        raise NotImplementedError

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.lengths[slot] = 0

    def views(self, slot: int, start: int, end: int) -> Sequence[Tensor]:
        """The entries at cache positions start to end - 1 of one slot: per plane a tensor (1, H, end - start,
        D) with H heads of size D."""
        raise NotImplementedError

    def extend(self, tree: TokenTree, slots: tuple[int, ...]) -> int:
        """Number of this tree's nodes whose keys and values are stored already. ValueError if another tree is
        not yet committed and this one does not extend it. Tokens on an accelerator are not compared, as that
        would wait for it at every level of a draft."""
        if self.tree is None or self.read == 0:
            return 0
        last, read = self.tree, self.read
        if last is tree:
            return read
        same = slots == self.slots and tree.forest.parents[:read] == last.forest.parents[:read]
        if same and tree.tokens.is_cpu and last.tokens.is_cpu:
            same = torch.equal(tree.tokens[:read], last.tokens[:read])
        if not same:
            raise ValueError(
                "the cache holds nodes of another tree: commit that tree first (with leaf -1 to keep "
                "nothing of it)"
            )
        return read

    def commit(self, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        """Keep the entries of the path from each root to its leaf and discard the entries of other nodes.
        Leaf -1 keeps no node of that row. AssertionError for a leaf that was not scored."""
        forest, moves = tree.forest, []
        for node, slot in zip(leaf, slots, strict=True):
            if node < 0:
                continue
            if node >= self.read:
                raise AssertionError(
                    f"node {node} cannot be committed: only the first {self.read} nodes were scored"
                )
            length = self.lengths[slot]
            path = local_path(forest, node)
            moves += [(slot, length + local, length + i) for i, local in enumerate(path) if local != i]
            self.lengths[slot] = length + len(path)
        if moves:
            self._move(moves)
        self.discard()

    def discard(self) -> None:
        self.tree, self.read, self.slots = None, 0, ()

    def rewind(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        for slot, length in zip(slots, lengths, strict=True):
            self.lengths[slot] = min(self.lengths[slot], length)

    def _move(self, moves: list[tuple[int, int, int]]) -> None:
        """Move entries, of all planes, from one position of a slot to a lower one: (slot, from, to). The
        moves of a slot are in increasing order, so that no entry is overwritten before it is moved."""
        raise NotImplementedError


class EagerCache(SlotCache):
    """A `SlotCache` for forwards in torch, with their position ids and causal masks."""

    in_8_bits = False  # whether new keys and values are rounded as `eight_bits` stores them

    def __init__(self, planes: Planes, capacity: int, device: torch.device) -> None:
        super().__init__(planes, capacity, device)
        self._longest = -1
        self.count_to(capacity)

    def count_to(self, longest: int) -> None:
        """Prepare position ids and masks for slots of at most `longest` cache positions."""
        if longest <= self._longest:
            return
        self._longest = longest
        self.count = torch.arange(longest + 1, device=self.device)  # position ids are slices of it
        self._causal_mask: Tensor | None = None

    def causal_mask(self, start: int, end: int) -> Tensor:  # (end - start, end) bool
        """The causal mask of tokens at cache positions start to end - 1."""
        if end - start > MAX_SLICED_MASK:
            return self.count[:end] <= self.count[start:end, None]
        if self._causal_mask is None:
            # row i attends to the first longest + i + 1 positions, so every chain's mask is a slice that
            # ends at its last token
            ones = torch.ones(
                MAX_SLICED_MASK, self._longest + MAX_SLICED_MASK, dtype=torch.bool, device=self.device
            )
            self._causal_mask = ones.tril(self._longest)
        shift = self._longest - start
        return self._causal_mask[: end - start, shift : shift + end]


def local_path(forest: Forest, node: int) -> list[int]:
    """The path from the root to the node, as indices within its row."""
    local = forest.local
    return [local[n] for n in forest.path(node)]
