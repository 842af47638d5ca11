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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Parts, Scores, Step, Verdict
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.drafters.compose.union import merged_trees
from outpace.schedules.beside import Beside
from outpace.schedules.pending import Drafts, left_below, one_tree, pending_trees, proposed

Found = Callable[[Context], TokenTree]  # chosen tokens after the texts of a context

# how many levels of the pending drafts, B trees of one row, the target reads. A token may decide about those
# after it, not about itself: q would no longer be the distribution of the tokens that are tested
Kept = Callable[[Context, Sequence[TokenTree]], Sequence[int]]


class RunAhead(Beside):
    """A schedule (`Parts.schedule`): drafts in a thread while the target reads the draft before."""

    __name__ = "run_ahead"

    def __init__(
        self,
        drafter: Drafter,
        *,
        overlap: bool = True,
        found: Found | None = None,
        kept: Kept | None = None,
    ) -> None:
        """`overlap`: use a thread; without, drafter and target work in turn, with the same texts. `found`:
        what the target reads after a pending draft, chosen tokens that cost no time to find. `kept`: cuts
        pending drafts before they are read; the next begins there. ValueError if the drafter needs the target
        to draft."""
        super().__init__(drafter, overlap=overlap)
        self._found, self._kept = found, kept

    def __call__(self, session: Session) -> Iterator[Step]:
        drafts: Drafts = {}
        drafting = self.drafting(session)
        try:
            while session.rows:
                if session.prefills and (step := session.prefill()):
                    yield step
                ctx = session.context()
                if not ctx.slots:
                    continue  # prompts are not read yet
                pending = Pending.of(session, ctx, drafts, self._kept)
                ahead = ctx.assuming(pending.tokens)
                drafting.start(partial(_proposed, session.parts, ahead))
                if self._found is not None:
                    read = merged_trees(pending.tree, self._found(ahead), pending.ends)
                    pending = replace(pending, tree=read)
                scores = session.parts.target.score(
                    pending.tree, ctx.slots, session.cache, session.want, gap=ctx.unread
                )
                session.timer.record("score")
                drafting, draft = self.drafted(session, drafting, ahead.roots)
                session.timer.record("draft")
                verdict = tested(session, ctx, pending, scores, draft.tree)
                step = session.commit(ctx, replace(draft, tree=pending.tree), scores, verdict)
                drafts = left_below(session, draft.tree, step, pending.tokens)
                if session.parts.target.chains_only:  # what is read; first tokens are not
                    drafts = {request: tree.first_chain() for request, tree in drafts.items()}
                yield step
        finally:
            drafting.close()


@dataclass(frozen=True)
class Pending:
    """The drafts that the target reads in a step."""

    tree: TokenTree
    ends: list[int]  # (B,) the node of each row after which the next draft begins: the first path's last
    tokens: list[list[int]]  # B x (A_b,) the draft tokens on the path to it

    @staticmethod
    def of(session: Session, ctx: Context, drafts: Drafts, kept: Kept | None = None) -> Pending:
        """The drafts of these rows; none where the request has none."""
        trees = pending_trees(session, ctx, drafts)
        if kept is not None:
            trees = [up_to(tree, levels) for tree, levels in zip(trees, kept(ctx, trees), strict=True)]
        tree = one_tree(trees)
        rows, children = range(len(ctx.slots)), tree.forest.children
        ends = list(rows)
        for row in rows:
            while below := children[ends[row]]:
                ends[row] = below[0]
        return Pending(tree, ends, [tokens_to(tree, end) for end in ends])


def _proposed(parts: Parts, ctx: Context) -> Draft:
    return proposed(parts, ctx, parts.plan(ctx))


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


def up_to(tree: TokenTree, levels: int) -> TokenTree:
    """The tree without the nodes below this many levels."""
    nodes = [node for node, depth in enumerate(tree.forest.depths) if depth <= levels]
    return tree if len(nodes) == len(tree) else tree.only(nodes)


def tokens_to(tree: TokenTree, node: int) -> list[int]:
    """The draft tokens on the path to a node."""
    tokens = tree.token_list()
    return [tokens[each] for each in tree.forest.path(node)[1:]]
