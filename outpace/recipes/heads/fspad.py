"""FSPAD (Gui et al. 2024): EAGLE-2's tree from a head whose tokens sample features and whose outputs are
aligned in part.

New here: nothing but the head. Reuses: FeatureDrafter, dynamic_tree, Match, Fixed or AdaptiveTree. Exact at
any temperature: the tokens are chosen by probability, carry no claim and are verified by matching.

The paper's code is not published and its text leaves both parts of the head open; this is our reading. The
features are sampled as s = f + W_down(SiLU(W_gate e) * (W_up f)), where e is the embedding of the token after
the feature f, as wide inside as the target's MLPs. The LM head reads the output g of the head's layer as
g + W g, while g itself is what the next token reads and what is trained to be the target's feature. With
W_down and W at 0, where training begins, the method is EAGLE-2.
"""

from functools import partial

from outpace.controllers.adaptive_tree import AdaptiveTree
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.models.heads.fspad.kind import FspadModel
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2408.15562", family="trained heads")
def fspad(
    target: Target,
    *,
    head: FspadModel,
    depth: int = 6,
    width: int = 10,
    num_nodes: int = 59,
    adaptive: bool = False,
) -> Parts:
    """A tree of the most probable paths of FSPAD's head, verified by matching.

    Args:
        head: folder with a head of FSPAD that was trained for the target
        depth: longest path that is drafted; the head runs as often
        width: paths extended per level, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
        adaptive: depth and num_nodes are upper bounds: as many as pay by measured times and acceptance
    """
    growth = partial(dynamic_tree, width=width, num_nodes=num_nodes)
    controller = AdaptiveTree(depth, num_nodes, target.sizes, head.model.sizes) if adaptive else Fixed(depth)
    return Parts(target, FeatureDrafter(head, target.vocab, growth, sampled=False), Match(), controller)
