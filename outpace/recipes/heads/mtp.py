"""Multi-token prediction (DeepSeek-AI 2024): the target's own layer for further tokens drafts.

New here: nothing. Reuses: FeatureDrafter, dynamic_tree, grow, Rejection, Fixed. Exact at any
temperature: the tree's tokens are chosen by probability and carry no claim; a drawn chain carries its
distribution.

Checkpoints of DeepSeek V3, GLM 4.5 and others hold such layers; transformers loads them. Of several the first
drafts at all depths, on its own outputs. Without one, `outpace train mtp` makes a head of the same form.
"""

from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, TargetWithLayers, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.mtp.head import native_head
from outpace.models.heads.mtp.kind import MtpHeadModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2412.19437", family="trained heads")
def mtp(
    target: Target,
    *,
    head: MtpHeadModel | None = None,
    tree: Literal["chain", "dynamic"] = "chain",
    depth: int = 3,
    width: int = 10,
    num_nodes: int = 59,
) -> Parts:
    """A chain of the target's own layer for further tokens, verified by rejection.

    Args:
        head: folder with a head that was trained for the target; default: the layer in its checkpoint
        tree: a chain drawn from the layer, or the most probable paths, which are verified by matching
        depth: longest path that is drafted; the layer runs as often
        width: paths extended per level of the tree, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
    """
    opened = head
    if opened is None:
        assert isinstance(target, TargetWithLayers)
        opened = HeadModel(native_head(target), compile=getattr(target, "compiled", None) is not None)
    is_chain = tree == "chain"
    growth = grow if is_chain else partial(dynamic_tree, width=width, num_nodes=num_nodes)
    drafter = FeatureDrafter(opened, target.vocab, growth, sampled=is_chain)
    return Parts(target, drafter, Rejection(), Fixed(depth))
