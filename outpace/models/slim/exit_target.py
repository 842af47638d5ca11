"""A target with SpecEE's early exits.

Letters: B rows, C candidates, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from outpace.core.contracts import NOTHING, Cache, Carry, Scores, Want
from outpace.core.tree import Forest, TokenTree
from outpace.models.draft_vocabulary import over_vocabulary
from outpace.models.forward.kv_cache import EagerCache
from outpace.models.forward.outputs import ForwardOutputs
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.models.predictors.exits.predictor import NUM_CANDIDATES
from outpace.models.slim.exit_forward import ExitForward
from outpace.models.slim.partial_target import PartialTarget
from outpace.models.slim.token_records import TokenRecords, records_of


class ExitTarget(PartialTarget):
    """Implementation of core.contracts.Target. Prompt tokens run through all layers, tokens of trees may exit
    early.

    The draft head reads the same tokens as the target, each with the preceding token's state at the input of
    the target's LM head, whether that token exited early or not."""

    def __init__(self, target: HFTarget, forward: ExitForward, head: HeadModel) -> None:
        super().__init__(target, forward, chains_only=True)
        self._exits, self._head = forward, head
        self._head_caches = WeakKeyDictionary[EagerCache, EagerCache]()

    @property
    def num_checks(self) -> int:
        """Number of predictions made so far."""
        return self._exits.num_checks

    def keep(
        self,
        pieces: Sequence[Tensor],
        slots: Sequence[int],
        cache: Cache,
        want: Want,
        features: Sequence[Tensor] | None = None,
    ) -> ForwardOutputs:
        self._exits.candidates = None
        return super().keep(pieces, slots, cache, want, features)

    @torch.no_grad()
    def score(
        self,
        tree: TokenTree,
        slots: Sequence[int],
        cache: Cache,
        want: Want = NOTHING,
        *,
        gap: Sequence[Tensor] | None = None,
        carry: Carry | None = None,
        features: Sequence[Tensor] | None = None,
    ) -> Scores:
        """Tokens of a row run one after the other, as checks depend on the exits of preceding tokens."""
        assert isinstance(cache, EagerCache)
        if gap is not None and any(map(len, gap)):
            self.keep(gap, slots, cache, NOTHING)
        first = cache.extend(tree, tuple(slots))
        parts: list[Scores] = []
        for begin, end in _groups(tree.forest, first):
            forest = Forest.of(tree.forest.parents[:end], tree.forest.num_rows)
            part = tree if end == len(tree) else TokenTree(tree.tokens[:end], forest)
            self._exits.candidates = self._candidates(part, begin, slots, cache)
            try:
                parts.append(super().score(part, slots, cache, want))
            finally:
                self._exits.candidates = None
        if not parts:
            return super().score(tree, slots, cache, want)
        logits = [scores.logits for scores in parts if scores.logits is not None]
        hidden = {layer: torch.cat([scores.hidden[layer] for scores in parts]) for layer in want.hidden}
        return Scores(first, torch.cat(logits), hidden)

    def _candidates(
        self, tree: TokenTree, begin: int, slots: Sequence[int], cache: EagerCache
    ) -> Tensor:  # (N, C)
        """The head's most probable tokens after the nodes from `begin` on, at most one per row, in row order;
        -1 for the first token of a text."""
        model, head_cache = self._head.model, self._head_cache(cache)
        count = min(NUM_CANDIDATES, self.vocab)
        nodes = sorted(range(begin, len(tree)), key=lambda node: tree.forest.rows[node])
        candidates = torch.full((len(nodes), count), -1, device=self.device)
        for index, node in enumerate(nodes):
            slot = slots[tree.forest.rows[node]]
            place = cache.lengths[slot] + tree.forest.depths[node]
            # entries from this position on are of rejected draft tokens or of an earlier request
            head_cache.lengths[slot] = min(head_cache.lengths[slot], max(0, place - 1))
            if not place:
                continue
            cache.reserve(slot, place + 1)
            records: TokenRecords = records_of(cache, slot, place, self.num_layers)
            read = head_cache.lengths[slot]
            tokens = torch.cat((records.tokens[read + 1 :].cpu(), tree.tokens[node][None].cpu()))
            weight = next(self._head.head.parameters())
            states = self._head.head.fuse(records.kept[read:].to(weight))
            if len(tokens) > 1:
                model.keep([tokens[:-1]], [slot], head_cache, NOTHING, [states[:-1]])
            last = model.keep([tokens[-1:]], [slot], head_cache, Want(prompt_logits=True), [states[-1:]])
            assert last.logits is not None
            logits = over_vocabulary(last.logits, self._head.head.draft_ids, self.vocab)
            candidates[index] = logits[0].topk(count).indices
        return candidates

    def _head_cache(self, cache: EagerCache) -> EagerCache:
        if cache not in self._head_caches:
            opened = self._head.model.open(len(cache.lengths), cache.capacity)
            assert isinstance(opened, EagerCache)
            self._head_caches[cache] = opened
        self._head_caches[cache].grow(len(cache.lengths))
        return self._head_caches[cache]


def _groups(forest: Forest, first: int) -> list[tuple[int, int]]:
    """The nodes from `first` on as consecutive ranges in which no row occurs twice."""
    groups, begin, rows = list[tuple[int, int]](), first, set[int]()
    for node in range(first, len(forest)):
        if forest.rows[node] in rows:
            groups.append((begin, node))
            begin, rows = node, set[int]()
        rows.add(forest.rows[node])
    return [*groups, (begin, len(forest))] if rows else groups
