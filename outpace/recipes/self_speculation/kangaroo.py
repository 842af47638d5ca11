"""Kangaroo (Liu et al. 2024): the target's first layers, a trained adapter and the LM head draft a chain.

New here: AdapterDrafter, in which an attention block turns the early layers' output into a draft, and
TopProbability, which ends the draft where the adapter is unsure. Reuses: the target without its last layers
on its own KV cache, grow, Rejection. Exact at any temperature: tokens are drawn from the adapter's
distribution, which they carry as a claim, and the token with which a draft ends stays in it; `sampled` false
drafts the most probable ones, without a claim.

The target continues from what its first layers have computed for the draft, so it runs only the layers after
them at draft tokens; a compiled target runs all of them again. A prompt is read by the target and, part by
part, by the adapter, in forwards of their own; the server's prefix cache has no effect. `outpace train
kangaroo --target TARGET --output FOLDER` trains the adapter; how many layers are before it is a setting,
`exits.layer`, and written to its folder.
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
