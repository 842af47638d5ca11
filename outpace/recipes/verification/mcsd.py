"""Multi-candidate speculative decoding (Yang et al. 2024): several candidates are drawn at every node.

New here: nothing. Reuses: DraftModel, Rejection, Fixed. Exact at any temperature. At temperature 0 the
candidates are the draft model's most probable tokens and carry no claim.
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
    """A tree of sampled candidates, verified by recursive rejection.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        widths: children of every node at each depth
        parents: parent of each draft node, 0 is the root; a tree of any shape in place of `widths`
        replace: draw siblings with replacement
        naive: verify by matching the target's own draw, the paper's simplest variant
    """
    shape = Shape(parents) if parents else Shape.branching(widths)
    return Parts(target, DraftModel(draft, replace=replace), Match() if naive else Rejection(), Fixed(shape))
