"""Dovetail (Zhang et al. 2025): a deeper head with gated fusion, on a GPU beside a target on the CPU.

New here: the head's place. Reuses: FeatureDrafter, dynamic_tree, Match, AdaptiveTree or Fixed. Exact at any
temperature: the tokens are chosen by probability, carry no claim and are verified by matching.

Verifying costs a CPU more with every node, so trees get as many nodes as pay by the measured times and
acceptance. The authors' runs draft 7 levels and verify 16 tokens.

Where target and head are on two devices, token ids and the hidden states of accepted tokens go to the head,
and the most probable tokens come back with their probabilities; weights, keys and values stay. The copies are
not overlapped with other work. The head's device then holds copies of the target's embedding and LM head.
"""

from functools import partial

import torch

from outpace.controllers.adaptive_tree import AdaptiveTree
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.models.heads.dovetail.kind import DovetailModel
from outpace.models.heads.head_model import HeadModel
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2412.18934", family="trained heads")
def dovetail(
    target: Target,
    *,
    head: DovetailModel,
    head_device: str = "auto",
    depth: int = 7,
    width: int = 10,
    num_nodes: int = 59,
    adaptive: bool = True,
) -> Parts:
    """A tree of a head on another device than the target, with as many nodes as pay, verified by matching.

    Args:
        head: folder with a head of Dovetail that was trained for the target
        head_device: where the head runs, as in cuda:0; auto is a GPU if there is one, else beside the target
        depth: longest path that is drafted; the head runs as often
        width: paths extended per level, and tokens tried after each
        num_nodes: draft tokens of a step, those of the most probable paths
        adaptive: depth and num_nodes are upper bounds: as many as pay by measured times and acceptance
    """
    placed = head.on(_device(head_device, head))
    growth = partial(dynamic_tree, width=width, num_nodes=num_nodes)
    controller = (
        AdaptiveTree(depth, num_nodes, target.sizes, placed.model.sizes) if adaptive else Fixed(depth)
    )
    return Parts(target, FeatureDrafter(placed, target.vocab, growth, sampled=False), Match(), controller)


def _device(name: str, head: HeadModel) -> torch.device:
    """The device of this name. ValueError if this machine has none."""
    beside_target = head.model.device
    if name == "auto":
        is_split = beside_target.type == "cpu" and torch.cuda.is_available()
        return torch.device("cuda") if is_split else beside_target
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter: torch without CUDA
        raise ValueError(
            f"there is no device {name} for the head: use cpu, auto, or the name of a GPU of this machine"
        ) from error
    return device
