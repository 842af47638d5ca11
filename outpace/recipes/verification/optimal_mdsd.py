"""Greedy multi-draft decoding (Hu et al. 2025): top-k siblings and one drawn from the other tokens.

New here: greedy_last. Reuses: DraftModel, Rejection, Fixed. Exact at any temperature: at depth d the
`widths[d]` - 1 most probable tokens are chosen, without a claim, and one more is drawn from q without them,
renormalised, and claims exactly that distribution. Rejection tests the drawn token first; if it is rejected,
the residual of p may still give a chosen one. No exact rule accepts such siblings more often (`python
-m benchmarks.verification_rules acceptance` shows the bound).
"""

from functools import partial

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.greedy_last import greedy_last
from outpace.drafters.model.grow import grow
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2502.18779", family="exact verification")
def optimal_mdsd(target: Target, *, draft: Target, widths: tuple[int, ...] = (2, 2, 2, 2)) -> Parts:
    """A tree of top-k siblings and one drawn sibling, verified by recursive rejection.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        widths: children of every node at each depth, one of them drawn
    """
    drafter = DraftModel(draft, growth=partial(grow, children=greedy_last))
    return Parts(target, drafter, Rejection(), Fixed(Shape.branching(widths)))
