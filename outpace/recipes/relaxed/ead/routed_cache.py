"""The KV caches of two models that write one text by turns."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.core.contracts import Target
from outpace.core.device_copies import indices
from outpace.core.tree import Forest, TokenTree
from outpace.recipes.relaxed.ead.routing import Route


@dataclass(frozen=True, eq=False)
class Chains:
    """Tokens that a model has read last and of which it has not kept all yet: one chain per slot."""

    tree: TokenTree
    slots: tuple[int, ...]
    begins: tuple[int, ...]  # index in its text of the first token of each chain


@dataclass
class Work:
    """What one of the models has done so far."""

    written: int = 0  # tokens that followed its logits; those of a text that is read again may count again
    read: int = 0  # tokens of its forwards


class ModelCache:
    """A model with a KV cache of its own, which lacks the tokens that the other model has read since."""

    def __init__(self, model: Target, work: Work, slots: int, capacity: int) -> None:
        self.model, self.work, self.cache = model, work, model.open(slots, capacity)
        self._chains: Chains | None = None

    def read(self, texts: Mapping[int, Sequence[int]], begins: Mapping[int, int]) -> dict[int, Tensor]:
        """Slot -> (T, V) logits after each token from index `begins[slot]` of a text on. Earlier tokens that
        are not in the KV cache are read in the same forward, and kept. `begins` of other slots: number of
        first tokens that are kept there."""
        self.keep(begins)
        slots, lengths = tuple(texts), self.cache.lengths
        chains = [texts[slot][begins[slot] :] for slot in slots]
        gap = [torch.tensor(texts[slot][lengths[slot] : begins[slot]], dtype=torch.int64) for slot in slots]
        tokens = [chain[0] for chain in chains] + [token for chain in chains for token in chain[1:]]
        tree = TokenTree(torch.tensor(tokens), Forest.chain(tuple(len(chain) - 1 for chain in chains)))
        self.work.read += len(tokens) + sum(map(len, gap))
        scores = self.model.score(tree, slots, self.cache, gap=gap if any(map(len, gap)) else None)
        assert scores.logits is not None
        self._chains = Chains(tree, slots, tuple(begins[slot] for slot in slots))
        # copies, as a compiled forward may overwrite the output of the one before it
        rows = [
            scores.logits.index_select(0, indices(nodes, scores.logits.device)) for nodes in tree.forest.nodes
        ]
        return dict(zip(slots, rows, strict=True))

    def keep(self, ends: Mapping[int, int]) -> None:
        """Keep of the tokens read last those among the first `ends[slot]` of a text; none of other slots."""
        if (last := self._chains) is not None:
            leaf = list[int]()
            for slot, begin, nodes in zip(last.slots, last.begins, last.tree.forest.nodes, strict=True):
                kept = min(ends.get(slot, 0) - begin, len(nodes))
                leaf.append(nodes[kept - 1] if kept > 0 else -1)
            self.cache.commit(last.tree, leaf, last.slots)
            self._chains = None

    def release(self, slots: Sequence[int]) -> None:
        self.keep({})
        self.cache.release(slots)


class RoutedCache:
    """Implementation of core.contracts.Cache and core.contracts.KnowsPrompts: the texts, where each of them
    stands, and the KV caches of the small and the large model. The memory is the large model's; that of the
    small one counts as a draft model's."""

    def __init__(
        self, models: tuple[Target, Target], work: tuple[Work, Work], slots: int, capacity: int
    ) -> None:
        """`models` and what they have done: the small one first."""
        small, large = (ModelCache(*pair, slots, capacity) for pair in zip(models, work, strict=True))
        self.models = small, large
        self.capacity, self.device = large.cache.capacity, large.cache.device
        self.lengths: list[int] = []
        self.texts: list[list[int]] = []  # committed tokens, by slot
        self.routes: list[Route] = []  # where the committed text stands, by slot
        self.prompt_lengths: list[int] = []
        # of the tree scored last: node -> where its text stands after its token was read; and with the
        # entropy of the distribution after it
        self.scored: dict[int, tuple[Route, Route]] = {}
        self.grow(slots)

    @property
    def num_bytes(self) -> int:
        return self.models[True].cache.num_bytes

    def slot_bytes(self, slot: int, tokens: int) -> int:
        return self.models[True].cache.slot_bytes(slot, tokens)

    def bytes_for(self, tokens: Mapping[int, int]) -> int:
        return self.models[True].cache.bytes_for(tokens)

    def grow(self, slots: int) -> None:
        for each in self.models:
            each.cache.grow(slots)
        for slot in range(len(self.lengths), slots):
            self.lengths.append(0)
            self.texts.append([])
            self.routes.append(Route())
            self.prompt_lengths.append(sys.maxsize)
            self.release([slot])

    def begin(self, slot: int, prompt_length: int) -> None:
        """Implementation of core.contracts.KnowsPrompts."""
        self.prompt_lengths[slot] = prompt_length

    def add(self, slot: int, tokens: Sequence[int], route: Route) -> None:
        """Append committed tokens, after which the text stands at `route`."""
        self.texts[slot] += tokens
        self.lengths[slot], self.routes[slot] = len(self.texts[slot]), route

    def commit(self, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        tokens = tree.token_list()
        for node, slot in zip(leaf, slots, strict=True):
            if node >= 0:
                path = tree.forest.path(node)
                self.add(slot, [tokens[each] for each in path], self.scored[node][1])
                for before, after in (self.scored[each] for each in path):
                    self.models[before.large].work.written += before is not after
        for each in self.models:
            each.keep({slot: self.lengths[slot] for slot in slots})
        self.scored, self.capacity = {}, self.models[True].cache.capacity

    def discard(self) -> None:
        for each in self.models:
            each.keep({})
        self.scored = {}

    def rewind(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        raise ValueError("a text that two models write cannot go back: give ead as the target's method only")

    def release(self, slots: Sequence[int]) -> None:
        for each in self.models:
            each.release(slots)
        for slot in slots:
            self.lengths[slot], self.texts[slot] = 0, []
            self.routes[slot], self.prompt_lengths[slot] = Route(), sys.maxsize
