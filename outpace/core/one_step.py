"""What happens in one step: draft, verify, and the tokens that are committed.

`decode.speculative_steps` does this for requests; `drafters.compose.staged` for drafts, with another model as
the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outpace.core.context import Context
from outpace.core.contracts import Cache, Draft, MakeTargetProbs, Parts, Scores, Verdict, Want
from outpace.core.step_timer import StepTimer
from outpace.core.tree import TokenTree


def draft_and_verify(
    parts: Parts, ctx: Context, cache: Cache, want: Want, target_probs: MakeTargetProbs, timer: StepTimer
) -> tuple[Draft, Scores, Verdict]:
    """A step up to its verdict: what it read is in the target's cache, but nothing is committed."""
    draft = parts.propose(ctx, parts.plan(ctx))  # draft
    if parts.target.chains_only:
        draft = replace(draft, tree=draft.tree.first_chain())
    timer.record("draft")
    scores = parts.target.score(draft.tree, ctx.slots, cache, want, gap=ctx.unread, carry=draft.carry)
    timer.record("score")
    probs = target_probs(scores, draft.tree, ctx)
    verdict = parts.verify(draft.tree, probs, scores, ctx.noise)  # verify
    timer.settle("verify", warping=probs.seconds)
    return draft, scores, verdict


def new_tokens(
    tree: TokenTree, verdict: Verdict, row: int, room: int, stop: Sequence[int]
) -> tuple[int, list[int]]:
    """The last node of a row to keep, and the row's new tokens: its accepted path and the bonus token, up to
    `room` tokens and the first stop token."""
    path = tree.forest.path(verdict.leaf[row])
    new = [*(tree.token_list()[node] for node in path[1:]), verdict.bonus[row]]
    del new[room:]
    del new[next((end for end, token in enumerate(new, 1) if token in stop), len(new)) :]
    return path[len(new) - 1], new
