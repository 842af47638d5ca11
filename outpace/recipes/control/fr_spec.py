"""FR-Spec (Zhao et al. 2025): EAGLE-2 with an LM head for the most frequent tokens only.

New here: trimmed_head, which makes a copy of the head with a smaller LM head. Reuses: kept_tokens,
FeatureDrafter, dynamic_tree, grow, Rejection, Fixed or AdaptiveTree. Exact at any temperature: the tree's
tokens are chosen by probability and carry no claim; a drawn chain carries its distribution, normalised over
the kept tokens.

The LM head of a draft head is the target's, and takes most of its time if the vocabulary is large. Draft
probabilities are normalised over the kept tokens, so paths have higher scores than with the whole head. The
paper ranks tokens by their counts in a large corpus. The target's own answers fit its texts better. Special
tokens are always kept. Without a file the tokens with the lowest ids are kept: byte-pair tokenizers number
tokens in the order in which they learned them, which begins with frequent ones.
"""

from functools import partial
from typing import Literal

from outpace.controllers.adaptive_tree import AdaptiveTree
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.drafters.model.kept_tokens import kept_tokens
from outpace.indexes.store import TokenCountsFile
from outpace.models.heads.eagle.kind import EagleModel
from outpace.models.heads.trimmed_draft import trimmed_head
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2502.14856", family="control and routing")
def fr_spec(
    target: Target,
    *,
    head: EagleModel,
    counts: TokenCountsFile | None = None,
    size: int | None = None,
    tree: Literal["dynamic", "chain"] = "dynamic",
    depth: int = 6,
    width: int = 10,
    num_nodes: int = 59,
    adaptive: bool = False,
) -> Parts:
    """A tree of the most probable paths of EAGLE's head over frequent tokens, verified by matching.

    Args:
        head: folder with a head of EAGLE that was trained for the target
        counts: file of `outpace index build --kind token-counts`; without one the lowest ids are kept
        size: number of tokens that the head keeps; none keeps a quarter of the vocabulary
        tree: the most probable paths, or a chain drawn from the head, which is verified by rejection
        depth: longest path that is drafted; the head runs as often
        width: paths extended per level of the tree, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
        adaptive: depth and num_nodes are upper bounds: as many as pay by measured times and acceptance
    """
    is_chain = tree == "chain"
    if adaptive and is_chain:
        raise ValueError("adaptive sizes trees: use it with tree dynamic")
    small = trimmed_head(head, kept_tokens(counts, target, size))
    growth = grow if is_chain else partial(dynamic_tree, width=width, num_nodes=num_nodes)
    drafter = FeatureDrafter(small, target.vocab, growth, sampled=is_chain)
    controller = AdaptiveTree(depth, num_nodes, target.sizes, small.model.sizes) if adaptive else Fixed(depth)
    return Parts(target, drafter, Rejection(), controller)
