"""MLP speculator (Wertheimer et al. 2024): a hidden state of the target, updated by each drafted token.

New here: nothing. Reuses: PositionDrafter, best_paths, grow, Rejection, Fixed. Exact at any temperature: the
tree's tokens are those of the most probable paths, without a claim; a drawn chain carries the speculator's
distributions.

All `branching` paths are tried, and the best `num_paths` are drafted, with the tokens that they share once.
Draft probabilities are compared at temperature 1, whatever the request's.
"""

from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.best_paths import best_paths
from outpace.drafters.model.grow import grow
from outpace.drafters.model.position_drafter import position_drafter
from outpace.models.heads.mlp_speculator.kind import MlpSpeculatorModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2404.19124", family="trained heads")
def mlp_speculator(
    target: Target,
    *,
    head: MlpSpeculatorModel,
    tree: Literal["best", "chain"] = "best",
    branching: tuple[int, ...] = (5, 4, 3),
    num_paths: int = 5,
    depth: int = 3,
) -> Parts:
    """The most probable paths of a small network that reads one token after the other, verified by matching.

    Args:
        head: folder with an MLP speculator that was trained for the target
        tree: the most probable paths, or a chain drawn from the speculator, verified by rejection
        branching: tokens tried after each path, by depth
        num_paths: paths drafted per step
        depth: tokens of the chain; tree and chain have at most as many as the speculator has steps
    """
    is_chain = tree == "chain"
    growth = grow if is_chain else partial(best_paths, branching=branching, num_paths=num_paths)
    drafter = position_drafter(head, target.vocab, growth, sampled=is_chain)
    return Parts(target, drafter, Rejection(), Fixed(depth if is_chain else len(branching)))
