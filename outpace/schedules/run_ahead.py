"""Drafting while the target works: what follows a draft is drafted before the target has read that draft.

In each step the target reads the pending draft, which was made during the step before, and the drafter drafts
what follows it, as if all of it were accepted. The first tokens of the new draft are tested in the same step,
with the target's distribution at the end of the pending draft. If one of them is accepted, what follows it is
the next pending draft; else the new draft is dropped, and the target reads no draft in the next step (PEARL,
arXiv:2408.11850, calls the two cases post-verify and pre-verify).

That changes no distribution. The first tokens are leaves of the tree that is verified, and no exact verifier
decides about a leaf by the distribution after it: only the bonus token needs that, and the bonus token after
such a leaf is dropped. Whether the rest of the new draft is used depends on tokens before it, not on its own,
so that the q recorded for it stays true.

Letters: B rows, N nodes, V vocabulary size.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, DraftsAhead, Parts, Scores, Step, Verdict
from outpace.core.request_state import RequestState
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.drafters.compose.rows import joined_rows
from outpace.drafters.compose.union import merged_trees
from outpace.drafters.no_draft import NoDraft
from outpace.schedules.draft_thread import Drafting, DraftThread, InTurn, ThreadLost


class RunAhead:
    """A schedule (`Parts.schedule`): drafts in a thread while the target reads the draft before.

    If the thread dies, drafts are made between the target's forwards from then on; if it hangs, nothing is
    drafted any more in its session. Either is said in a warning and counted in `lost`; requests go on."""

    __name__ = "run_ahead"

    def __init__(self, drafter: Drafter, *, overlap: bool = True) -> None:
        """`overlap`: use a thread; without, drafter and target work in turn, with the same texts. ValueError
        if the drafter cannot draft after tokens that may be taken back."""
        check_drafts_ahead(drafter)
        self._overlap = overlap
        self.lost = 0  # threads that died or hung

    def __call__(self, session: Session) -> Iterator[Step]:
        drafts: dict[int, tuple[RequestState, TokenTree]] = {}  # slot -> its request and pending draft
        drafting = self._drafting(session)
        try:
            while session.rows:
                if session.prefills and (step := session.prefill()):
                    yield step
                ctx = session.context()
                if not ctx.slots:
                    continue  # prompts are not read yet
                pending = Pending.of(ctx, known(session, ctx, drafts))
                ahead = ctx.assuming(pending.tokens)
                drafting.start(lambda parts=session.parts, ahead=ahead: proposed(parts, ahead))
                scores = session.parts.target.score(
                    pending.tree, ctx.slots, session.cache, session.want, gap=ctx.unread
                )
                session.timer.record("score")
                try:
                    draft = drafting.draft()
                except ThreadLost as loss:
                    self._lose(session, loss)
                    drafting, draft = InTurn(), Draft(TokenTree.roots(ahead.roots))
                session.timer.record("draft")
                verdict = tested(session, ctx, pending, scores, draft.tree)
                step = session.commit(ctx, replace(draft, tree=pending.tree), scores, verdict)
                left = pending.left(step, draft.tree)
                drafts = {slot: (session.request(slot), tree) for slot, tree in left.items()}
                yield step
        finally:
            drafting.close()

    def _drafting(self, session: Session) -> Drafting:
        return DraftThread(session.cache.device) if self._overlap and not self.lost else InTurn()

    def _lose(self, session: Session, loss: ThreadLost) -> None:
        """Go on without the thread, and with what it has left of the drafter."""
        self.lost += 1
        then = "no more drafts are made" if loss.hangs else "drafts are made between the target's forwards"
        warnings.warn(f"the thread that makes drafts {loss}: {then}; requests go on", stacklevel=3)
        if loss.hangs:  # it may still use the drafter
            session.parts = replace(session.parts, drafter=NoDraft())
        else:
            session.parts.drafter.release(session.rows)


def check_drafts_ahead(drafter: Drafter) -> None:
    """ValueError for a drafter that cannot draft after tokens that may be taken back."""
    if not (isinstance(drafter, DraftsAhead) and drafter.drafts_ahead):
        raise ValueError(
            f"{type(drafter).__name__} cannot draft ahead of the target, whose outputs or KV entries it "
            "needs: give a draft model with a KV cache of its own"
        )


@dataclass(frozen=True)
class Pending:
    """The drafts that the target reads in a step."""

    tree: TokenTree
    ends: list[int]  # (B,) the node of each row after which the next draft begins: the first path's last
    tokens: list[list[int]]  # B x (A_b,) the draft tokens on the path to it

    @staticmethod
    def of(ctx: Context, drafts: Mapping[int, TokenTree]) -> Pending:  # slot -> tree of one row
        """The drafts of these rows; none where the slot has none."""
        rows = range(len(ctx.slots))
        trees = [
            drafts.get(slot) or TokenTree.roots(ctx.tokens[row][-1:]) for row, slot in enumerate(ctx.slots)
        ]
        tree = trees[0] if len(trees) == 1 else joined_rows(trees, [[row] for row in rows])
        ends, children = list(rows), tree.forest.children
        for row in rows:
            while below := children[ends[row]]:
                ends[row] = below[0]
        return Pending(tree, ends, [tokens_to(tree, end) for end in ends])

    def left(self, step: Step, draft: TokenTree) -> dict[int, TokenTree]:
        """By slot what is left to read of a draft that begins at `ends`, after the tokens of the step; the
        rows are left out in which these are other tokens, or where nothing is left."""
        following: dict[int, list[int]] = {}  # row -> the tokens of the step after `ends`
        for row, (tokens, new) in enumerate(zip(self.tokens, step.generated, strict=True)):
            if row not in step.finished and len(new) > len(tokens) and new[: len(tokens)] == tokens:
                following[row] = new[len(tokens) :]
        found = draft.match([following.get(row, ()) for row in range(len(self.ends))])
        return {
            step.ctx.slots[row]: draft.below([found[row]])
            for row, tokens in following.items()
            if draft.forest.depths[found[row]] == len(tokens) and draft.forest.children[found[row]]
        }


def known(
    session: Session, ctx: Context, drafts: Mapping[int, tuple[RequestState, TokenTree]]
) -> dict[int, TokenTree]:  # slot -> its pending draft
    """The drafts without those of requests that have left their slots, or whose texts are read again."""
    found: dict[int, TokenTree] = {}
    for slot, length in zip(ctx.slots, ctx.committed, strict=True):
        if slot in drafts:
            request, tree = drafts[slot]
            if session.request(slot) is request and request.length == length:
                found[slot] = tree
    return found


def proposed(parts: Parts, ctx: Context) -> Draft:
    """The method's draft; without the drafter where no row has room for one."""
    if not any(ctx.max_draft_depth):
        return Draft(TokenTree.roots(ctx.roots))
    draft = parts.propose(ctx, parts.plan(ctx))
    return replace(draft, tree=draft.tree.first_chain()) if parts.target.chains_only else draft


def tested(session: Session, ctx: Context, pending: Pending, scores: Scores, draft: TokenTree) -> Verdict:
    """The verdict on the pending drafts and the first tokens of the draft after them, which the target has
    not read: if one of these is accepted, it is the bonus token. `scores`: of the pending drafts."""
    first = draft.only([node for node, depth in enumerate(draft.forest.depths) if depth < 2])
    tree, read = merged_trees(pending.tree, first, pending.ends), len(pending.tree)
    parents, tokens = tree.forest.parents, tree.token_list()
    assert scores.logits is not None
    # after an unread node: any distribution, as nothing that is kept depends on it
    logits = torch.cat([scores.logits, scores.logits[list(parents[read:])]])
    target_probs = session.target_probs(replace(scores, logits=logits), tree, ctx)
    verdict = session.parts.verify(tree, target_probs, scores, ctx.noise)
    session.timer.settle("verify", warping=target_probs.seconds)
    pairs = list(zip(verdict.leaf, verdict.bonus, strict=True))
    return Verdict(
        [parents[leaf] if leaf >= read else leaf for leaf, _ in pairs],
        [tokens[leaf] if leaf >= read else bonus for leaf, bonus in pairs],
    )


def tokens_to(tree: TokenTree, node: int) -> list[int]:
    """The draft tokens on the path to a node."""
    tokens = tree.token_list()
    return [tokens[each] for each in tree.forest.path(node)[1:]]
