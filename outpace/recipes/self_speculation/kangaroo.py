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

from functools import partial

from outpace.controllers.top_probability import TopProbability
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.skip_set import SkipSet
from outpace.drafters.model.adapter_drafter import AdapterDrafter
from outpace.drafters.model.grow import grow
from outpace.models.heads.head_model import KangarooModel
from outpace.models.slim.make import num_layers, without
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
