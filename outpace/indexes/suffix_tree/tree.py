"""A counted suffix tree of bounded depth over many requests, the oldest forgotten first (Oliaro et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.candidates import NOTHING, Candidates
from outpace.indexes.compiled_loops import Tokens, as_tokens, grown
from outpace.indexes.store import damaged, expect, within
from outpace.indexes.suffix_tree.kernels import BASE, ORDER, ROOM, ROOT, SIZE, evict, extend, locate
from outpace.indexes.suffix_tree.siblings import (
    CHILD,
    COUNT,
    FREE_GROUP,
    FREE_NODE,
    GROUP,
    LENGTH,
    LIVE,
    NEXT,
    NODES,
    PARENT,
    PREVIOUS,
    SLOT,
    START,
    TAIL,
)
from outpace.indexes.suffix_tree.speculation import speculate
from outpace.indexes.tables.hash_map import HashMap


class SuffixTree:
    """Every substring of up to `depth` tokens with its number of occurrences, path-compressed, siblings by count.

    It holds at most `most_tokens` tokens: the oldest request is evicted as a whole, and if that is the one being
    extended, it begins anew. At most two nodes a token, about 200 bytes.
    """

    kind = "suffix-tree"

    def __init__(self, depth: int = 64, most_tokens: int = 1 << 22) -> None:
        if depth < 1 or most_tokens < 1:
            raise ValueError("a suffix tree has room for at least one token, and depth for one")
        self.depth, self.most_tokens = depth, most_tokens
        self.nodes = np.zeros((64, 10), np.int32)
        self.groups = np.zeros((64, 2), np.int32)
        self.map = HashMap.empty(64)
        self.known = np.zeros(5, np.int32)
        self.known[[FREE_NODE, FREE_GROUP]] = -1
        self.known[[NODES, LIVE]] = 1
        self.nodes[ROOT] = -1
        self.nodes[ROOT, COUNT] = 0
        self.slots = np.full((4, 5), -1, np.int64)
        self.active = np.zeros((4, depth), np.int32)
        self.text = np.zeros(256, np.int32)
        self._held: dict[
            int, tuple[int, int | None]
        ] = {}  # order -> slot and request; None: finished. Oldest first
        self._open: dict[int, int] = {}  # request -> order
        self._free = list(range(4))
        self._came = self._num_tokens = self._end = 0  # requests so far, tokens, and where no text is yet

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def num_requests(self) -> int:
        return len(self._held)

    @property
    def num_nodes(self) -> int:
        """The root not counted."""
        return int(self.known[LIVE]) - 1

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that is kept, room to grow included."""
        keys, values = self.map
        return {
            "nodes": self.nodes,
            "groups": self.groups,
            "keys": keys,
            "values": values,
            "known": self.known,
            "slots": self.slots,
            "active": self.active,
            "text": self.text,
        }

    @property
    def facts(self) -> dict[str, int]:
        return {
            "tokens": self.num_tokens,
            "documents": self.num_requests,
            "depth": self.depth,
            "most_tokens": self.most_tokens,
        }

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.arrays.values())

    def extend(self, request: int, tokens: Tokens) -> None:
        """Append to a request, a new one if it is not being written; O(depth) a token."""
        taken = as_tokens(tokens)[-self.most_tokens :]
        while self._num_tokens + len(taken) > self.most_tokens:
            self.evict()
        order = self._open.get(request)
        slot = self._begin(request) if order is None else self._held[order][0]
        self._make_room(slot, int(self.slots[slot, SIZE]) + len(taken))
        self._num_tokens += len(taken)
        extend(
            self.nodes, self.groups, *self.map, self.known, self.slots, self.text, self.active, slot, taken
        )

    def finish(self, request: int) -> None:
        """Nothing more comes of this request; what it said stays until it is evicted."""
        order = self._open.pop(request, None)
        if order is not None:
            slot = self._held[order][0]
            self._held[order] = slot, None
            self.slots[slot, ROOM] = self.slots[slot, SIZE]

    def evict(self) -> None:
        """Forget the oldest request."""
        order = next(iter(self._held))
        slot, request = self._held.pop(order)
        if request is not None:
            del self._open[request]
        evict(self.nodes, self.groups, *self.map, self.known, self.slots, self.text, self.active, slot)
        self._num_tokens -= int(self.slots[slot, SIZE])
        self.slots[slot] = -1
        self._free.append(slot)

    def count(self, tokens: Tokens) -> int:
        """Occurrences of one to `depth` tokens."""
        node, _ = locate(self.nodes, *self.map, self.slots, self.text, as_tokens(tokens), 0)
        return int(self.nodes[node, COUNT]) if node > ROOT else 0

    def speculate(
        self,
        context: Tokens,
        most: int = 64,
        *,
        factor: float = 1.0,
        offset: float = 0.0,
        floor: float = 0.1,
        tree: bool = False,
        unfollowed: int = 0,  # times the context ends a text that is not in here
    ) -> Candidates:
        """The best continuation over all match lengths p: at most factor * p + offset tokens, weights from `floor` up.

        A node's weight is the product of count(child) / count(parent) along its path, in which what was matched counts
        its places in the tree and those `unfollowed`. A chain of the most frequent
        children, or with `tree` the nodes of the largest weights. The highest sum of weights wins, then the longer p.
        """
        if most < 1:
            return NOTHING
        draft, weights = np.empty((2 * most, 2), np.int32), np.empty(2 * most, np.float64)
        first, size, matched = speculate(
            self.nodes,
            *self.map,
            self.slots,
            self.text,
            as_tokens(context[-self.depth :]),
            float(factor),
            float(offset),
            float(floor),
            bool(tree),
            unfollowed,
            draft,
            weights,
        )
        tokens, parents = draft[first : first + size].T.tolist()
        return (
            Candidates(tokens, parents, weights[first : first + size].tolist(), matched) if size else NOTHING
        )

    def _begin(self, request: int) -> int:
        if not self._free:
            size = len(self.slots)
            self.slots, self.active = grown(self.slots, 2 * size, -1), grown(self.active, 2 * size)
            self._free = list(range(size, 2 * size))
        slot = self._free.pop()
        self.slots[slot] = 0
        self.slots[slot, [BASE, ORDER]] = self._end, self._came
        self._open[request] = self._came
        self._held[self._came] = slot, request
        self._came += 1
        return slot

    def _make_room(self, slot: int, size: int) -> None:
        """For so many tokens of one request, and for the nodes that can come of them."""
        walks = self._num_tokens + size - int(self.slots[slot, SIZE])
        self.nodes, self.groups = grown(self.nodes, 2 * walks + 2), grown(self.groups, 2 * walks + 2)
        self.map = self.map.grown(2 * walks + 2)
        if size <= self.slots[slot, ROOM]:
            return
        self.slots[slot, ROOM] = room = 2 * size
        if self._end + room > len(self.text):
            self._pack()
        else:
            base = int(self.slots[slot, BASE])
            kept = self.text[base : base + int(self.slots[slot, SIZE])]
            self.text[self._end : self._end + len(kept)] = kept
            self.slots[slot, BASE] = self._end
            self._end += room

    def _pack(self) -> None:
        """Move all texts together."""
        live = [slot for slot, _ in self._held.values()]
        needed = int(self.slots[live, ROOM].sum())
        size = len(self.text) if 2 * needed <= len(self.text) else 2 * needed
        text, self._end = np.zeros(size, np.int32), 0
        for slot in live:
            base, used, room = self.slots[slot, [BASE, SIZE, ROOM]].tolist()
            text[self._end : self._end + used] = self.text[base : base + used]
            self.slots[slot, BASE] = self._end
            self._end += room
        self.text = text

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, int]) -> Self:
        """Requests that were being written are finished."""
        found = cls(facts["depth"], facts["most_tokens"])
        names = {"nodes": (None, 10), "groups": (None, 2), "values": (None,), "known": (5,), "text": (None,)}
        found.nodes, found.groups, values, found.known, found.text = expect(arrays, **names)
        (found.active,) = expect(arrays, active=(None, found.depth))
        keys, found.slots = expect(arrays, np.int64, keys=(len(values),), slots=(len(found.active), 5))
        found.map = HashMap(keys, values)
        orders = found.slots[:, ORDER]
        live = [slot for slot in np.argsort(orders).tolist() if orders[slot] >= 0]
        found._held = {int(orders[slot]): (slot, None) for slot in live}
        found._free = np.flatnonzero(orders < 0).tolist()
        found._came = 1 + max(found._held, default=-1)
        found._num_tokens = int(found.slots[live, SIZE].sum())
        found._end = int((found.slots[live, BASE] + found.slots[live, ROOM]).max(initial=0))
        if not found._sound(live):
            raise damaged()
        return found

    def _sound(self, live: list[int]) -> bool:
        """Whether the loops stay within the arrays."""
        num, used = len(self.nodes), self.nodes[self.nodes[:, COUNT] > 0]
        links = 1 + used[:, [CHILD, TAIL, NEXT, PREVIOUS]]
        reached = [
            links[links > 0] - 1,
            self.map.values[self.map.keys >= 0],
            used[used[:, PARENT] != ROOT, PARENT],
        ]
        base, size, room = self.slots[live][:, [BASE, SIZE, ROOM]].T
        return (
            all(within(each, num) and (self.nodes[each, COUNT] > 0).all() for each in reached)
            and within(1 + self.nodes[:, NEXT], num + 1)
            and within(used[:, SLOT], len(self.slots))
            and bool((self.slots[used[:, SLOT], ORDER] >= 0).all())
            and bool(
                (used[:, START].astype(np.int64) + used[:, LENGTH] <= self.slots[used[:, SLOT], SIZE]).all()
            )
            and bool((used[:, START] >= 0).all() and (used[:, LENGTH] > 0).all())
            and within(used[:, GROUP], len(self.groups))
            and within(1 + self.groups, num + 1)
            and within(1 + self.known, num + 2)
            and bool((self.map.keys < 0).any())
            and len(self.map.keys) & (len(self.map.keys) - 1) == 0
            and within(base, 1 << 40)
            and bool((size >= 0).all() and (size <= room).all() and (room <= len(self.text)).all())
            and bool((base + room <= len(self.text)).all())
        )
