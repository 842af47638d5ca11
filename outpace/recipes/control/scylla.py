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
tokens and of its size, are fitted by `outpace.analysis.scaling_law`; `outpace draft-design` weighs acceptance
against latency. The paper leaves open with which losses heads are pretrained, and whether its paths are nodes
or leaves: here the losses are EAGLE's or HASS's, and m counts nodes, as these are what a forward computes. It
gives no tolerance; the default is 0.1.

Sizes depend on the batch and on times, texts do not: matching draws the token of each position with the noise
of that position.
"""

from functools import partial

from outpace.controllers.batch_tree import BatchTree
from outpace.core.contracts import Parts, Target, recipe
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
