"""Drafting during the target's last layers: its first layers tell which continuations are probable.

A step of Mirror Speculative Decoding (arXiv:2510.13161):

1. The target's first layers read the pending draft. Norm and LM head on their outputs give a distribution
   after each node, of which the most probable tokens are published: the first rendezvous.
2. The target goes on with the other layers. Meanwhile the drafter drafts what would follow the most probable
   ends of the verification (`keys`), all of them in one tree that it reads level by level.
3. Final rendezvous: the target's own samples are matched with the pending draft. If the tokens that were
   generated are one of the keys, what was drafted after it is the next pending draft. Else, and in the first
   step, the drafter works first, and the target waits: the serial fallback.

What is drafted changes no distribution, as tokens are accepted by matching alone.

Of the step's time "score" is the target's, before and after the first rendezvous, and "draft" is only that
for which the target waited for the drafter: in the serial fallback, and at the final rendezvous.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from outpace.core.context import Context
from outpace.core.contracts import (
    NOTHING,
    Cache,
    Carry,
    Draft,
    Drafter,
    Plan,
    ReadsTargetCache,
    Scores,
    Step,
    Want,
)
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.recipes.overlap.mirror_sd.keys import stem_of_keys
from outpace.schedules.beside import Beside
from outpace.schedules.pending import Drafts, left_below, one_tree, pending_trees, proposed


class TwoRendezvous(Beside):
    """A schedule (`Parts.schedule`): drafts in a thread while the target's last layers work.

    In a step in which the target reads a part of a prompt too, it does so with all layers at once, and
    nothing is drafted for the next step."""

    __name__ = "two_rendezvous"

    def __init__(
        self,
        drafter: Drafter,
        first_layers: ReadsTargetCache,  # the target's, with its norm and LM head, on its KV cache
        *,
        candidates: int,  # most probable tokens after each node of the pending draft
        budget: int,  # continuations that are drafted, by row
        overlap: bool = True,
    ) -> None:
        """ValueError without candidates or budget, or for a drafter that needs the target to draft."""
        super().__init__(drafter, overlap=overlap)
        for name, value in (("candidates", candidates), ("budget", budget)):
            if value < 1:
                raise ValueError(f"{name} is {value}; give a number of at least 1")
        self._first_layers, self._candidates, self._budget = first_layers, candidates, budget

    def __call__(self, session: Session) -> Iterator[Step]:
        drafts: Drafts = {}
        view = self._first_layers.view(session.cache)
        drafting = self.drafting(session)
        try:
            while session.rows:
                if session.prefills and (step := session.prefill()):
                    yield step
                ctx = session.context()
                if not ctx.slots:
                    continue  # prompts are not read yet
                parts, plan = session.parts, session.parts.plan(ctx)
                afresh = _drafted_afresh(session, ctx, plan, drafts)
                session.timer.record("draft")
                tree = _pending(session, ctx, afresh.tree, drafts)
                carry, is_split = None, ctx.unread is None and any(ctx.max_draft_depth)
                if is_split:
                    scores, carry = self._read_first(ctx, tree, view)
                    below = self._below_keys(ctx, plan, tree, scores)
                    session.timer.record("score")
                    drafting.start(partial(proposed, parts, ctx, below))
                scores = parts.target.score(
                    tree, ctx.slots, session.cache, session.want, gap=ctx.unread, carry=carry
                )
                session.timer.record("score")
                made = Draft(TokenTree.roots(ctx.roots))
                if is_split:
                    drafting, made = self.drafted(session, drafting, ctx.roots)
                session.timer.record("draft")
                target_probs = session.target_probs(scores, tree, ctx)
                verdict = session.parts.verify(tree, target_probs, scores, ctx.noise)
                session.timer.settle("verify", warping=target_probs.seconds)
                draft = Draft(tree, afresh.forwards + made.forwards, afresh.seconds + made.seconds)
                step = session.commit(ctx, draft, scores, verdict)
                drafts = left_below(session, made.tree, step)
                yield step
        finally:
            drafting.close()

    def _read_first(self, ctx: Context, tree: TokenTree, view: Cache) -> tuple[Scores, Carry | None]:
        """The outputs of the first layers at the pending drafts, and what the target goes on from."""
        view.discard()  # the target has overwritten the entries of the step before
        layer = self._first_layers.carried_layer
        want = NOTHING if layer is None else Want(hidden=frozenset({layer}))
        scores = self._first_layers.score(tree, ctx.slots, view, want)
        return scores, None if layer is None else Carry(tree, layer, scores.hidden[layer])

    def _below_keys(self, ctx: Context, plan: Plan, tree: TokenTree, scores: Scores) -> Plan:
        """The plan for drafts below the keys, in the rows that have any."""
        assert scores.logits is not None
        stops = [params.stop for params in ctx.sampling]
        stem = stem_of_keys(tree, scores.logits, ctx.max_draft_depth, stops, self._candidates, self._budget)
        sizes = map(len, stem.forest.nodes)
        depth = [limit if size > 1 else 0 for limit, size in zip(plan.depth, sizes, strict=True)]
        return replace(plan.within(depth), stem=stem)


def _drafted_afresh(session: Session, ctx: Context, plan: Plan, drafts: Drafts) -> Draft:
    """The drafts of the rows whose requests have no pending ones."""
    known = [session.request(slot) in drafts for slot in ctx.slots]
    if all(known):
        return Draft(TokenTree.roots(ctx.roots))
    depth = [0 if each else limit for each, limit in zip(known, plan.depth, strict=True)]
    return proposed(session.parts, ctx, plan.within(depth))


def _pending(session: Session, ctx: Context, afresh: TokenTree, drafts: Drafts) -> TokenTree:
    """What the target reads: the pending drafts, and those that were made afresh in the other rows."""
    new = {session.request(slot): afresh.below([row]) for row, slot in enumerate(ctx.slots)}
    tree = one_tree(pending_trees(session, ctx, {**new, **drafts}))
    return tree.first_chain() if session.parts.target.chains_only else tree
