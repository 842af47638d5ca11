"""RSD-C (Jeon et al. 2024): every node of the draft draws the same number of different children.

New here: nothing. Reuses: LM, Rejection, Fixed. Exact at any temperature. The paper draws all children of a node at
once, as the largest of log q plus Gumbel noise in falling order; LM draws them one after the other without replacement,
which is the same distribution of the same ordered children. Recursive rejection tests them in that order, each against the distribution
it was really drawn from. `widths[d]` children are drawn at depth d; at temperature 0 the likeliest tokens, without a
claim.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2402.14160", family="exact verification")
def rsd_c(target: Target, *, draft: Target, widths: tuple[int, ...] = (2, 2, 2, 2)) -> Parts:
    return Parts(target, DraftModel(draft, replace=False), Rejection(), Fixed(Shape.branching(widths)))
