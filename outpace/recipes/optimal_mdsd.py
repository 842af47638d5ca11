"""Greedy multi-draft decoding (Hu et al. 2025): all candidates but one are the likeliest, the last is drawn.

New here: greedy_last. Reuses: LM, Rejection, Fixed. Exact at any temperature: the likeliest
`widths[d]` - 1 tokens at depth d are chosen, without a claim, and one more is drawn from q without them, claimed to be
a draw from just that distribution. Rejection tests the drawn one first; refused, what is left of p may still give a chosen one.
For children made in this way no exact rule accepts one of them more often (`outpace verifiers` shows the bound).
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
    drafter = DraftModel(draft, growth=partial(grow, children=greedy_last))
    return Parts(target, drafter, Rejection(), Fixed(Shape.branching(widths)))
