"""The target's first layers with a trained adapter as drafter (Kangaroo, Liu et al. 2024).

The early layers read draft tokens on a view of the target's KV cache. The adapter reads their outputs and has
a KV cache of its own, which follows the committed text: of a draft it keeps the entries of the accepted
tokens. What the early layers have computed is carried to verification, where the target continues from it.

Letters: P tokens, N nodes, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context, longest_draft
from outpace.core.contracts import NOTHING, Cache, Carry, Draft, Plan, Step, Want
from outpace.core.tree import TokenTree
from outpace.drafters.compose.rows import draft_within
from outpace.drafters.model.draft_reader import MOST_UNREAD, DraftReader
from outpace.drafters.model.grow import Growth
from outpace.models.heads.head_model import HeadModel
from outpace.models.slim.slim_table import SlimTable
from outpace.models.slim.slim_target import SlimTarget


class AdapterDrafter:
    """Implementation of core.contracts.Drafter around the target's first layers and an adapter.

    The target gives the early layers' outputs at the tokens of prompts, part by part as it reads them, and at
    other tokens that the adapter has not read: the last token of a draft that was accepted as a whole, and
    those of steps without a draft. The adapter reads these together with the root of its next draft, or where
    nothing is drafted in parts of `MOST_UNREAD` tokens. Its KV cache tells how many they are, also after a
    draft that failed or was not verified."""

    learns_across_rows = drafts_across_rows = False

    def __init__(
        self,
        early: SlimTarget | SlimTable,  # the target's layers before the exit
        adapter: HeadModel,  # reads the output of the last of them
        growth: Growth,
        *,
        sampled: bool,  # `growth` draws tokens
    ) -> None:
        (self.layer,) = adapter.head.taps
        self.early, self.adapter, self._growth = early, adapter, growth
        self.want = Want(hidden=frozenset({self.layer}))
        self.claims: tuple[type[Claim], ...] = (Drawn,) if sampled else ()
        self._view: Cache | None = None  # of the target's KV cache
        self._cache: Cache | None = None  # of the adapter
        # slot -> (P, D) the early layers' outputs at the last committed tokens: at those that the adapter has
        # not read, and until the next `observe` also at those that its last draft has read
        self._unread: dict[int, Tensor] = {}
        # the tree of the last draft, without the level that the adapter has not read, and its rows' slots
        self._read: tuple[TokenTree, tuple[int, ...]] | None = None

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        return draft_within(self._propose, ctx, plan, self.adapter.model.max_length)

    def _propose(self, ctx: Context, plan: Plan) -> Draft:
        self._discard()
        reader = AdapterReader(self, ctx)
        with reader.checked():
            tree = self._growth(ctx, plan, reader)
            carry = reader.carry(tree)
        if reader.read is not None:
            self._read = reader.read, ctx.slots
        return Draft(tree, reader.forwards, reader.seconds, carry)

    def observe(self, step: Step) -> None:
        """Keep the adapter's entries of accepted tokens, and the early layers' outputs at the other committed
        ones. The tokens of a prompt's part are read at once."""
        tree, slots = step.draft.tree, step.ctx.slots
        paths = [tree.forest.path(node) for node in step.kept]
        states = step.scores.hidden[self.layer]
        cache = self.caches(step.ctx.cache)[1]
        if not any(step.generated):
            rows = [row for row in range(len(slots)) if self._reads(step, row)]
            if rows:
                tokens = [tree.tokens[paths[row]].cpu() for row in rows]
                own = [slots[row] for row in rows]
                self.adapter.model.keep(tokens, own, cache, NOTHING, [states[paths[row]] for row in rows])
            for slot in slots:
                self._unread[slot] = states[:0]
            return
        self._keep({slot: tree.tokens[path[1:]].tolist() for slot, path in zip(slots, paths, strict=True)})
        for row, (slot, path) in enumerate(zip(slots, paths, strict=True)):
            if not self._reads(step, row):
                self._unread[slot] = states[:0]
                continue
            new, before = states[path], self._unread.get(slot)
            known = new if before is None else torch.cat((before, new))
            read = cache.lengths[slot]
            known = self._unread[slot] = _last(known, step.ctx.committed[row] - 1 + len(path) - read)
            if len(known) > MOST_UNREAD:
                after = torch.tensor(step.generated[row][:-1], dtype=torch.int64)
                tokens = torch.cat((step.ctx.tokens[row][read:], after))
                self.adapter.model.keep([tokens], [slot], cache, NOTHING, [known])
                self._unread[slot] = known[:0]

    def _reads(self, step: Step, row: int) -> bool:
        """Whether the adapter can draft after a step: it reads no texts that are longer than its positions
        allow."""
        length = step.ctx.committed[row] + len(step.draft.tree.forest.path(step.kept[row]))
        return longest_draft(self.adapter.model.max_length, length) > 0

    def _keep(self, accepted: dict[int, list[int]]) -> None:
        """Keep the entries of the last draft's root and accepted tokens. `accepted`: slot -> the tokens after
        the root that were committed."""
        if self._read is None:
            return
        tree, slots = self._read
        assert self._cache is not None
        self._cache.commit(tree, tree.match([accepted[slot] for slot in slots]), slots)
        self._read = None

    def _discard(self) -> None:
        """Remove the last draft's tokens from the adapter's KV cache if `observe` has not committed any of
        them: drafting or verification raised an error, or the draft was for other requests of the same step.
        Committed tokens that were read together with that draft stay in the cache."""
        if self._cache is not None:
            self._cache.discard()
        self._read = None

    def release(self, slots: Sequence[int]) -> None:
        self._discard()  # another request may use the slot before the next draft
        for slot in slots:
            self._unread.pop(slot, None)
        if self._cache is not None:
            self._cache.release([slot for slot in slots if slot < len(self._cache.lengths)])
        if not self._unread:  # free the memory of the KV cache until the next request
            self._cache = self._view = None

    def unread(self, slot: int, count: int, none: Tensor) -> Tensor:  # (P, D)
        """The early layers' outputs at the `count` committed tokens before the root; `none`: at no token."""
        return _last(self._unread.get(slot, none), count)

    def caches(self, target: Cache) -> tuple[Cache, Cache]:
        """The view of the target's KV cache, and the adapter's own with a slot for each of the target's."""
        if self._cache is None or self._view is None:
            self._view = self.early.view(target)
            self._cache = self.adapter.model.open(len(target.lengths), target.capacity)
        self._cache.grow(len(target.lengths))
        return self._view, self._cache


class AdapterReader(DraftReader):
    """The forwards of one draft, of the last of which it keeps the logits."""

    def __init__(self, drafter: AdapterDrafter, ctx: Context) -> None:
        super().__init__(ctx.cache.device)
        self._drafter, self._ctx = drafter, ctx
        self.layer = drafter.layer
        self._view, self._cache = drafter.caches(ctx.cache)
        self._view.discard()  # the target has overwritten the entries of the last draft
        self.read: TokenTree | None = None  # the tree that the adapter has read
        self.states: list[Tensor] = []  # (N, D) the early layers' outputs at all nodes so far, in parts

    def __call__(self, tree: TokenTree) -> tuple[int, Tensor]:
        slots, model = self._ctx.slots, self._drafter.adapter.model
        with self.timed():
            gap, features = self._inputs(tree)
            scores = model.score(tree, slots, self._cache, gap=gap, features=features)
        assert scores.logits is not None
        self.forwards += 1
        self.read, self.logits = tree, [scores.logits]
        return scores.first, scores.logits

    def _inputs(self, tree: TokenTree) -> tuple[list[Tensor] | None, list[Tensor]]:
        """Per row the committed tokens that the adapter reads with the root, and the early layers' outputs at
        its tokens."""
        drafter, ctx = self._drafter, self._ctx
        first, states = self._read_early(tree)
        features = [states[[node - first for node in nodes if node >= first]] for nodes in tree.forest.nodes]
        if self.forwards:
            return None, features
        gap = [self._missing(row) for row in range(len(ctx.slots))]
        for row, (slot, tokens) in enumerate(zip(ctx.slots, gap, strict=True)):
            unread = drafter.unread(slot, len(tokens), states[:0])
            features[row] = torch.cat((unread, features[row]))
        return gap, features

    def _missing(self, row: int) -> Tensor:  # (P,)
        """The committed tokens before the root that the adapter has not read."""
        ctx = self._ctx
        return ctx.tokens[row][self._cache.lengths[ctx.slots[row]] : ctx.committed[row] - 1]

    def _read_early(self, tree: TokenTree) -> tuple[int, Tensor]:  # (N - first, D)
        early = self._drafter.early
        first, states = early.outputs(tree, self._ctx.slots, self._view, self.layer)
        # copied, as a compiled forward may overwrite the output of the one before it
        self.states.append(states.clone())
        return first, self.states[-1]

    def carry(self, tree: TokenTree) -> Carry | None:
        """The early layers' outputs at all nodes of the tree, also those of its last level, which are read
        for that; None if the target cannot use them."""
        if self._drafter.early.carried_layer is None:
            return None
        if sum(map(len, self.states)) < len(tree):
            with self.timed():
                self._read_early(tree)
        return Carry(tree, self.layer, torch.cat(self.states))


def _last(states: Tensor, count: int) -> Tensor:  # (P, D) -> (count, D)
    return states[len(states) - count :]
