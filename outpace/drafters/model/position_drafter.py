"""Drafts from one hidden state of the target: that at the token before the root, from which the root was
sampled.

Letters: B rows, M nodes of one depth, D hidden size, S size of a node's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Plan, Step, Want
from outpace.core.tree import Shape, TokenTree
from outpace.drafters.lookup.rank_template import by_accuracy, falling_accuracies
from outpace.drafters.model.draft_reader import DraftReader
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import Growth, Read
from outpace.models.draft_vocabulary import over_vocabulary
from outpace.models.heads.position_head import PositionHead
from outpace.models.heads.position_model import PositionModel


class PositionDrafter:
    """Implementation of core.contracts.Drafter around a head without a KV cache.

    `sampled`: `growth` draws tokens. A row drafts nothing in the step that reads the end of its prompt, since
    the hidden state at the token before the root is not known; prompts need no forwards of their own."""

    want = Want(hidden=frozenset({-1}), at_prompt=False)
    learns_across_rows = drafts_across_rows = False

    def __init__(self, head: PositionHead, growth: Growth, *, sampled: bool) -> None:
        self._head, self._growth = head, growth
        self.claims: tuple[type[Claim], ...] = (Drawn,) if sampled else ()
        self._newest: dict[int, Tensor] = {}  # slot -> (D,) hidden state at the token before the root

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        known = [slot in self._newest for slot in ctx.slots]
        if ctx.unread:  # the last state is that at a token before these
            known = [each and not len(tokens) for each, tokens in zip(known, ctx.unread, strict=True)]
        if not any(known):
            return Draft(TokenTree.roots(ctx.roots))
        if not all(known):
            plan = plan.within([depth if each else 0 for depth, each in zip(plan.depth, known, strict=True)])
        zeros = next(self._head.parameters()).new_zeros(self._head.hidden_size)
        hidden = torch.stack([self._newest.get(slot, zeros) for slot in ctx.slots])
        return drafted(ctx, plan, hidden, self._head, self._growth)

    def observe(self, step: Step) -> None:
        hidden = step.scores.hidden[-1]
        nodes = torch.tensor(step.kept, device=hidden.device) - step.scores.first
        # a copy: a view would keep the outputs of whole prompts, and compiled forwards overwrite theirs
        newest = hidden[nodes].to(next(self._head.parameters()))
        self._newest.update(zip(step.ctx.slots, newest, strict=True))

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._newest.pop(slot, None)


def position_drafter(opened: PositionModel, vocab: int, growth: Growth, *, sampled: bool) -> Drafter:
    """A drafter around a head without a KV cache, for a target of `vocab` tokens. A prefix layer of Hydra++
    follows the text with a KV cache, and its output at the root takes the hidden state's place."""
    if opened.prefix is None:
        return PositionDrafter(opened.head, growth, sampled=sampled)
    after_prefix = partial(_after_prefix, head=opened.head, growth=growth)
    return FeatureDrafter(opened.prefix, vocab, after_prefix, sampled=sampled)


def static_tree(opened: PositionModel, num_nodes: int, depth: int) -> Shape:
    """The tree of the `num_nodes` most probable ranks, at most `depth` tokens deep: by the accuracies
    measured for the head, or if there are none, by falling ones."""
    return by_accuracy(opened.head.rank_accuracies or falling_accuracies(depth), num_nodes, depth)


def _after_prefix(ctx: Context, plan: Plan, read: Read, *, head: PositionHead, growth: Growth) -> TokenTree:
    """A tree drafted from the outputs of a prefix layer, which `read` returns in place of logits."""
    _, states = read(TokenTree.roots(ctx.roots))
    states = states.to(next(head.parameters()))  # compiled layers give float32
    return drafted(ctx, plan, states, head, growth).tree


def drafted(
    ctx: Context,
    plan: Plan,
    hidden: Tensor,  # (B, D)
    head: PositionHead,
    growth: Growth,
) -> Draft:
    """The trees that `growth` builds from the head's logits. ValueError if these are NaN or infinite."""
    if head.max_depth is not None:
        plan = plan.within((head.max_depth,) * len(ctx.slots))
    if max(plan.depth, default=0) == 0:
        return Draft(TokenTree.roots(ctx.roots))
    reader = _Reader(head, hidden)
    with reader.checked(every_level=True):
        tree = growth(ctx, plan, reader)
    return Draft(tree, len(reader.logits), reader.seconds)


class _Reader(DraftReader):
    """Reads the levels of a draft tree one after the other, of each of which it keeps the logits."""

    def __init__(self, head: PositionHead, hidden: Tensor) -> None:  # (B, D)
        super().__init__(hidden.device)
        self._head = head
        self._states = self._start = head.begin(hidden)  # (M, S) after the nodes of the last level
        self._last = self._next = 0  # first node of that level and of the next

    def __call__(self, tree: TokenTree) -> tuple[int, Tensor]:
        with self.timed():
            return self._read(tree)

    def _read(self, tree: TokenTree) -> tuple[int, Tensor]:
        forest, depth, first = tree.forest, len(self.logits), self._next
        tokens, device = tree.tokens, self._start.device
        if self._head.reads_path:
            states = self._states
            if depth:
                states = states[torch.tensor(forest.parents[first:], device=device) - self._last]
            logits, self._states = self._head(depth, states, tokens[first:].to(device))
        else:  # all nodes of a level below one root have its logits
            of_roots, _ = self._head(depth, self._start, tokens[: forest.num_rows].to(device))
            logits = of_roots[torch.tensor(forest.rows[first:], device=device)]
        self._last, self._next = first, len(tree)
        self.logits.append(logits)
        return first, over_vocabulary(logits, self._head.draft_ids, self._head.vocab)
