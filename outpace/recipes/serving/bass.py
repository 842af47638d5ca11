"""BASS (Qian et al. 2024): batched speculative sampling with one draft length that follows acceptance.

New here: BatchLength. Reuses: DraftModel, Rejection. Exact at any temperature, for each row and for all rows
together: the length of a draft follows from steps before it, never from its own tokens.

All rows draft chains of the same length, in one forward of the draft model per token; one forward of the
target verifies them. Each row keeps the tokens it accepted, and its KV entries, whatever the others accepted,
and leaves the batch when it ends. After a step in which a row accepted its whole draft the length grows by
`increment`, at most to `max_depth`; otherwise it falls by a tenth (`divisor`), and by one more if it fell the
step before, but not below the most tokens that a row accepted.

The paper has two layouts of attention over rows of unequal length. Here the target's forwards determine it:
eager forwards call attention once per row, without padding (the paper's SPLIT); forwards recorded as CUDA
graphs call it once, with all rows padded to one length (PAD); OpenVINO's paged attention is one call without
padding. Linear layers process the tokens of all rows in one matrix; only CUDA graphs pad there.

Use it for batches of requests, such as several samples of a prompt. The length depends on all rows of the
batch: where tokens are drawn, a seed gives another text in another batch, from the same distribution;
`--no-sampled` gives each row the text that it gets alone. The length stays while requests join and leave and
starts at `depth` again once none is left, which the paper, with its fixed batches, does not say.

The paper's time budget belongs to its evaluation: it counts the samples of a problem that end within some
seconds, and takes the best of them. Nothing in drafting or verification depends on it. Rows leave the batch
when they end; what is not ended in time is cancelled by who asked for it (`Session.cancel`, a closed
connection to the server).
"""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Step, Target, Want, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2404.15778", family="batching and serving")
def bass(
    target: Target,
    *,
    draft: Target,
    depth: int = 7,
    increment: int = 2,
    divisor: int = 10,
    max_depth: int = 32,
    sampled: bool = True,
) -> Parts:
    """A draft model's chains of one length for the whole batch, verified by rejection.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        depth: tokens drafted in the first step
        increment: tokens added to the length after a step in which a row accepted its whole draft
        divisor: other steps shorten the length by its part of this size, rounded up
        max_depth: maximum number of tokens drafted per step
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    controller = BatchLength(depth, increment=increment, divisor=divisor, max_depth=max_depth)
    return Parts(target, DraftModel(draft, sampled=sampled), Rejection(), controller)


class BatchLength:
    """Implementation of core.contracts.Controller: chains of one length l in all rows.

    After a step in which some row accepted l tokens, l grows by `increment`, at most to `max_depth`. After
    any other step it falls by ceil(l / `divisor`), and by one more if it fell after the step before, but not
    below the most tokens that any row accepted, nor below 1.

    Rows that only read a part of their prompt do not count. Neither does a step in which no row drafted l
    tokens, since the rows' own limits cut all of its drafts. The length belongs to the batch: it stays while
    requests join and leave, and starts at `depth` again once no request is left.
    """

    want = Want()
    plans_across_rows = True

    def __init__(self, depth: int = 7, *, increment: int = 2, divisor: int = 10, max_depth: int = 32) -> None:
        if not 1 <= depth <= max_depth:
            raise ValueError(f"depth is {depth}; give at least 1 and at most max_depth, {max_depth}")
        if increment < 0 or divisor < 1:
            raise ValueError(f"increment is {increment} and divisor {divisor}; give at least 0 and 1")
        self._first, self._increment, self._divisor, self._max_depth = depth, increment, divisor, max_depth
        self._active: set[int] = set()  # slots of requests that have not ended
        self._depth, self._fell = depth, False

    def plan(self, ctx: Context) -> Plan:
        self._active.update(ctx.slots)
        return Plan((self._depth,) * len(ctx.slots))

    def observe(self, step: Step) -> None:
        forest = step.draft.tree.forest
        rows = [row for row, generated in enumerate(step.generated) if generated]
        drafted = max((forest.depths[forest.nodes[row][-1]] for row in rows), default=0)
        if drafted >= self._depth:
            self._adapt([forest.depths[step.verdict.leaf[row]] for row in rows])

    def release(self, slots: Sequence[int]) -> None:
        self._active.difference_update(slots)
        if not self._active:
            self._depth, self._fell = self._first, False

    def _adapt(self, accepted: Sequence[int]) -> None:
        """Change the length after a step with these numbers of accepted tokens, one per row."""
        depth = self._depth
        if max(accepted) >= depth:
            self._depth, self._fell = min(depth + self._increment, self._max_depth), False
        else:
            less = -(-depth // self._divisor) + self._fell
            self._depth, self._fell = max(1, *accepted, depth - less), True
