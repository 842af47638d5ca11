"""Multi-sample drafting (Li et al. 2025): samples of one prompt draft what the others went on with.

New here: Consensus. Reuses: Match, Fixed. Exact at any temperature, and samples stay independent: its tokens carry no
claim, and every row draws from noise of its own.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.consensus import Consensus
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2503.05330", family="training-free")
def multi_sample(
    target: Target,
    *,
    depth: int = 10,
    longest: int = 4,
    shortest: int = 2,
    threshold: float = 0.3,
    tree: bool = False,
    nodes: int = 16,
    matches: int = 32,
) -> Parts:
    drafter = Consensus(longest, shortest, threshold=threshold, tree=tree, nodes=nodes, matches=matches)
    return Parts(target, drafter, Match(), Fixed(depth))
