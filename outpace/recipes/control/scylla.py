"""Scylla (Yan et al. 2025): larger draft heads, and trees that shrink as the batch grows.

New here: BatchTree, which gives the trees of a batch as many nodes as are verified at no cost. Reuses:
FeatureDrafter, dynamic_tree, Match. Exact at any temperature: the tokens are chosen by probability, carry no
claim and are verified by matching; the size of the trees follows from measured times.

Verifying m nodes in each of B rows takes as long as verifying one, up to some number of tokens in all. m is
the largest number whose predicted time is within `tolerance` of that, at least 1; a larger batch never has
larger trees. In the first steps sizes are fixed, so that times show what a node costs, and one step in 16
tries another size later. Drafting is not part of the rule: whether drafts pay at all is asked by smartspec,
and by `eagle2` with `adaptive`.

The head is EAGLE's, with one decoder layer or several: `outpace train eagle --set head.num_layers=2` (or
`hass`). The paper's laws, by which the acceptance length grows with the logarithm of the head's training
tokens and of its size, are straight lines, which docs/training.md fits; `python -m benchmarks.draft_design`
weighs acceptance against latency. The paper leaves open with which losses heads are pretrained, and whether
its paths are nodes or leaves: here the losses are EAGLE's or HASS's, and m counts nodes, as these are what a
forward computes. It gives no tolerance; the default is 0.1.

Sizes depend on the batch and on times, texts do not: matching draws the token of each position with the noise
of that position.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from outpace.controllers.idle_compute import IdleCompute
from outpace.controllers.step_cost import StepCost
from outpace.core.context import Context
from outpace.core.contracts import Parts, PathScores, Plan, Step, Target, Want, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.models.heads.head_model import AnyEagleModel
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2505.07858", family="control and routing")
def scylla(
    target: Target,
    *,
    head: AnyEagleModel,
    depth: int = 6,
    width: int = 10,
    num_nodes: int = 59,
    tolerance: float = 0.1,
) -> Parts:
    """A tree of the most probable paths of EAGLE's head, of as many nodes as the batch leaves time for.

    Args:
        head: folder with a head of EAGLE or EAGLE-3 that was trained for the target; EAGLE's may have several
            decoder layers
        depth: longest path that is drafted; the head runs at most as often
        width: most paths extended per level, and tokens tried after each
        num_nodes: most draft tokens of a row
        tolerance: share by which a step may take longer than with one draft token per row
    """
    growth = partial(dynamic_tree, width=width, num_nodes=num_nodes)
    controller = BatchTree(depth, num_nodes, tolerance=tolerance, sizes=target.sizes)
    return Parts(target, FeatureDrafter(head, target.vocab, growth, sampled=False), Match(), controller)


class BatchTree:
    """Implementation of core.contracts.Controller for trees of the most probable paths, and of
    core.contracts.TreeSize for each of its plans.

    All rows have trees of m nodes, which `IdleCompute` finds for the number of rows. Only paths that are
    among the m most probable so far are extended: what follows another one is less probable still. The tree
    is thus the same as if `width` paths had been extended, and fewer forwards of the head make it.

    Tokens of the tree are chosen, not drawn, so a size that depends on them leaves the output exact.
    """

    want = Want()
    plans_across_rows = True

    def __init__(self, depth: int, num_nodes: int, *, tolerance: float, sizes: Sequence[int] = ()) -> None:
        """`depth`, `num_nodes`: levels and draft tokens of the largest tree of one row. `tolerance`: share by
        which verification may take longer than that of one draft token per row. `sizes`: numbers of tokens to
        which compiled forwards of the target are padded. ValueError for a depth or number of nodes below
        1."""
        if min(depth, num_nodes) < 1:
            raise ValueError(f"depth is {depth} and num_nodes {num_nodes}; use 1 or more")
        self._depth = depth
        self._idle = IdleCompute(num_nodes, StepCost(sizes), least=1, tolerance=tolerance)
        self._num_nodes = num_nodes  # of each row's tree in the step that is planned

    def plan(self, ctx: Context) -> Plan:
        limits = [min(self._depth, limit) for limit in ctx.max_draft_depth]
        if ctx.unread is not None:  # a draft would delay the first token after a prompt
            limits = [0 if len(unread) else limit for limit, unread in zip(limits, ctx.unread, strict=True)]
        if any(limits):
            self._num_nodes = self._idle.num_tokens(len(limits), sum(ctx.committed))
        return Plan(tuple(limits), size=self)

    def keep(self, candidates: Sequence[PathScores], levels: int) -> list[int]:
        return [self._num_nodes] * len(candidates)

    def extend(
        self, candidates: Sequence[PathScores], newest: Sequence[PathScores], levels: int
    ) -> list[int]:
        least = [row[self._num_nodes - 1 : self._num_nodes] for row in candidates]
        return [
            int((new >= limit[0]).sum()) if len(limit) else len(new)
            for new, limit in zip(newest, least, strict=True)
        ]

    def observe(self, step: Step) -> None:
        self._idle.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: what was learned is about the machine."""
