"""Multi-candidate speculative decoding (Yang et al. 2024): every node of the draft draws several candidates.

New here: nothing. Reuses: LM, Rejection, Fixed. Exact at any temperature. `widths[d]` children are drawn at depth d,
without replacement unless `replace`. `naive` verifies by matching, as the paper's simplest variant does. At
temperature 0 the candidates are the likeliest tokens and carry no claim. `parents` names a tree of any shape in place
of `widths`: the parent of each draft node, 0 being the root.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2401.06706", family="exact verification")
def mcsd(
    target: Target,
    *,
    draft: Target,
    widths: tuple[int, ...] = (4, 2, 2),
    parents: tuple[int, ...] = (),
    replace: bool = False,
    naive: bool = False,
) -> Parts:
    shape = Shape(parents) if parents else Shape.branching(widths)
    return Parts(target, DraftModel(draft, replace=replace), Match() if naive else Rejection(), Fixed(shape))
