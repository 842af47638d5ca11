"""RSD-C (Jeon et al. 2024): every node of the draft draws the same number of distinct children.

New here: nothing. Reuses: DraftModel, Rejection, Fixed. Exact at any temperature. The paper draws all
children of a node at once, as the tokens with the largest log q plus Gumbel noise in falling order;
DraftModel draws them one by one without replacement, which gives the same distribution of ordered children.
Recursive rejection tests them in that order, each against the distribution it was drawn from. At temperature
0 the children are the most probable tokens, without a claim.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2402.14160", family="exact verification")
def rsd_c(target: Target, *, draft: Target, widths: tuple[int, ...] = (2, 2, 2, 2)) -> Parts:
    """A tree of draws without replacement, verified by recursive rejection.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        widths: children of every node at each depth, drawn without replacement
    """
    return Parts(target, DraftModel(draft, replace=False), Rejection(), Fixed(Shape.branching(widths)))
