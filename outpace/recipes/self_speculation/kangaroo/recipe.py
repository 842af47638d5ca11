"""Kangaroo (Liu et al. 2024): the target's first layers, a trained adapter and the LM head draft a chain.

New here: AdapterDrafter: the outputs of the target's first layers pass through a trained attention block, the
adapter, and then through the target's LM head, which gives the draft distribution; and TopProbability, which
ends a draft when no token has enough probability. Reuses: the target without its last layers on its own KV
cache, grow, Rejection. Exact at any temperature: tokens are drawn from that distribution and carry it as a
claim, and the token at which a draft ends stays in the draft. With `sampled` false the most probable tokens
are drafted, without a claim.

The target does not compute its first layers again at draft tokens: it continues from what they computed for
the draft. A compiled target computes all layers. The target and the adapter read a prompt in forwards of
their own, part by part, so the server's prefix cache has no effect. `outpace train kangaroo --target TARGET
--output FOLDER` trains the adapter. The setting `exits.layer` is the number of layers before it, which is
written to its folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from outpace.core.context import Context
from outpace.core.contracts import Frontier, Parts, Plan, Step, Target, Want, recipe
from outpace.drafters.model.grow import grow
from outpace.models.heads.kangaroo.kind import KangarooModel
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import num_layers, without
from outpace.recipes.self_speculation.kangaroo.adapter_drafter import AdapterDrafter
from outpace.sampling.topk import at_least_float32
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2404.18911", family="self-speculation")
def kangaroo(
    target: Target, *, head: KangarooModel, depth: int = 6, threshold: float = 0.6, sampled: bool = True
) -> Parts:
    """A chain drafted by the target's first layers and an adapter, verified by rejection token by token.

    Args:
        head: folder with an adapter that was trained for the target
        depth: most tokens drafted per step
        threshold: end the draft with a token whose distribution has no probability of at least this
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    (layer,) = head.head.taps
    early = without(target, SkipSet.after(layer + 1, num_layers(target)))
    drafter = AdapterDrafter(early, head, partial(grow, sampled=sampled), sampled=sampled)
    return Parts(target, drafter, Rejection(), TopProbability(depth, threshold))


class TopProbability:
    """Implementation of core.contracts.Controller (Kangaroo, Liu et al. 2024): chains of at most `depth`
    tokens that end with the first token drawn or chosen from a distribution whose largest probability, before
    sampling parameters, is below `threshold`. The token itself, drawn by then, stays in the draft.

    With a threshold of 0 all drafts have `depth` tokens."""

    want = Want()
    plans_across_rows = False

    def __init__(self, depth: int, threshold: float) -> None:
        """ValueError for a threshold outside of 0 to 1."""
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}; give a probability from 0 to 1")
        self._depth, self._threshold = depth, threshold

    def plan(self, ctx: Context) -> Plan:
        return Plan((self._depth,) * len(ctx.slots), stop=self._stopped)

    def _stopped(self, frontier: Frontier) -> list[bool]:
        assert frontier.logits is not None
        largest = at_least_float32(frontier.logits).softmax(-1).amax(-1).tolist()
        return [each < self._threshold for each in largest]

    def observe(self, step: Step) -> None:
        """Does nothing: the plan never changes."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state is kept per request."""
