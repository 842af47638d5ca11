"""Drafts that wait for the target: made during one step, read by the target in a later one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Step
from outpace.core.request_state import RequestState
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.drafters.compose.rows import joined_rows

# by request, not by slot, which another request may have in the next step; trees of one row
Drafts = Mapping[RequestState, TokenTree]


def pending_trees(session: Session, ctx: Context, drafts: Drafts) -> list[TokenTree]:
    """The drafts of these rows, a tree for each; a root alone where the request has none, or where its text
    is read again, as after a preemption."""
    trees = list[TokenTree]()
    for slot, text in zip(ctx.slots, ctx.tokens, strict=True):
        request = session.request(slot)
        draft = drafts.get(request) if len(text) == request.length else None
        trees.append(draft or TokenTree.roots(text[-1:]))
    return trees


def one_tree(trees: Sequence[TokenTree]) -> TokenTree:
    """Trees of one row as one tree of all rows."""
    return trees[0] if len(trees) == 1 else joined_rows(trees, [[row] for row in range(len(trees))])


def proposed(parts: Parts, ctx: Context, plan: Plan) -> Draft:
    """The method's draft; without the drafter where no row has room for one."""
    return parts.propose(ctx, plan) if any(ctx.max_draft_depth) else Draft(TokenTree.roots(ctx.roots))


def left_below(
    session: Session, draft: TokenTree, step: Step, assumed: Sequence[Sequence[int]] | None = None
) -> dict[RequestState, TokenTree]:
    """What is left to read of a draft once the tokens of the step are committed. The rows are left out whose
    requests have ended, whose tokens the draft does not have, or where nothing is left. `assumed` (B): the
    tokens of each row after which the draft begins; None: it begins at the step's roots."""
    following: dict[int, list[int]] = {}  # row -> the tokens of the step after the draft's root
    for row, new in enumerate(step.generated):
        before = list(assumed[row]) if assumed else []
        if row not in step.finished and len(new) > len(before) and new[: len(before)] == before:
            following[row] = new[len(before) :]
    found = draft.match([following.get(row, ()) for row in range(len(step.generated))])
    return {
        session.request(step.ctx.slots[row]): draft.below([found[row]])
        for row, tokens in following.items()
        if draft.forest.depths[found[row]] == len(tokens) and draft.forest.children[found[row]]
    }
