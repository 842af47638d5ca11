"""SpecMQuant (Zhang et al. 2025): a small model makes chains of trees, for a target with weights of 4 bits.

New here: nothing. Reuses: Staged, DraftModel, dynamic_tree, Match, Rejection, Fixed. Exact at any temperature
with respect to the target as it is loaded: with weights of 4 bits, that is the distribution of these weights.

A target with few bits reads a tree of 60 tokens in much more time than one token, as its weights are unpacked
for every product. So only the small model reads trees, and the target reads a chain of at least `least`
tokens. In the paper a head of EAGLE drafts for the small model; here a draft model does, with the trees of
EAGLE-2.
"""

from functools import partial

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.compose.staged import Staged
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection


@recipe(
    paper="arXiv:2505.22179",
    family="stages",
    proven_with={"least": 2, "inner_depth": 2, "width": 2, "num_nodes": 3},
)
def specmquant(
    target: Target,
    *,
    middle: Target,
    draft: Target,
    least: int = 6,
    inner_depth: int = 3,
    width: int = 10,
    num_nodes: int = 30,
) -> Parts:
    """Trees for a small model, which makes chains of them for a target with few bits.

    Args:
        middle: small model with the same vocabulary, which reads the trees
        draft: model that drafts the trees; it has the same vocabulary
        least: tokens that the small model's chain has at least, up to `inner_depth` more
        inner_depth: longest path of a tree
        width: paths of a tree that are extended per level, and tokens tried after each
        num_nodes: draft tokens of a tree
    """
    if min(least, inner_depth, width, num_nodes) < 1:
        raise ValueError(
            f"least is {least}, inner_depth {inner_depth}, width {width} and num_nodes {num_nodes}: "
            "each is 1 or more"
        )
    trees = DraftModel(draft, sampled=False, growth=partial(dynamic_tree, width=width, num_nodes=num_nodes))
    inner = Parts(middle, trees, Match(), Fixed(inner_depth))
    return Parts(target, Staged(inner, least=least), Rejection(), Fixed(least + inner_depth))
