"""Chimera (Zeng et al. 2024): the last three tokens look at the whole text in one decoder layer.

New here: nothing. Reuses: FeatureDrafter, grow, by_accuracy, Rejection, Fixed. Exact at any temperature: the
tree's tokens are the most probable ones by rank, without a claim; a drawn chain carries the head's
distributions. The paper's typical acceptance is that of `medusa-typical`.

The layer's keys and values are those of the target's hidden states; a drafted token has none yet, so the
layer's output stands for it in later levels. Our reading differs from the paper in three places: one LM head
drafts at all depths, as in the authors' defaults; the vector of a trigram reaches the output by the residual
connection alone, since it would need a key and a value of its own beside those of the token before; and the
shape of the tree follows from assumed accuracies of ranks.
"""

from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.lookup.rank_template import by_accuracy, falling_accuracies
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.models.heads.chimera.kind import ChimeraModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2402.15758", family="trained heads")
def chimera(
    target: Target,
    *,
    head: ChimeraModel,
    tree: Literal["static", "chain"] = "static",
    num_nodes: int = 63,
    depth: int = 4,
) -> Parts:
    """A tree of fixed shape from a layer between trigrams and the target's states, verified by matching.

    Args:
        head: folder with a head of Chimera that was trained for the target
        tree: the most probable ranks after each path, or a chain drawn from the head, verified by rejection
        num_nodes: draft tokens of the tree
        depth: longest path that is drafted
    """
    is_chain = tree == "chain"
    drafter = FeatureDrafter(head, target.vocab, partial(grow, sampled=is_chain), sampled=is_chain)
    draft = depth if is_chain else by_accuracy(falling_accuracies(depth), num_nodes, depth)
    return Parts(target, drafter, Rejection(), Fixed(draft))
