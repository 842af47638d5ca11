"""Traversal verification (Weng et al. 2025): a tree of draws is verified from its leaves up to its root.

New here: nothing. Reuses: LM, Traversal, Fixed. Exact at any temperature: whole paths are accepted or refused, so a
branch that a rule from the root down would have given up early can still win. `widths[d]` children are drawn at depth d
(the paper's binary tree), without replacement unless `replace`; `parents` names a tree of any shape instead, by the
parent of each draft node, 0 being the root. A chain (`widths` all 1) makes it block verification. At temperature 0 the
children are the likeliest tokens, carry no claim, and nothing is gained over other rules.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.traversal import Traversal


@recipe(paper="arXiv:2505.12398", family="exact verification")
def traversal(
    target: Target,
    *,
    draft: Target,
    widths: tuple[int, ...] = (2, 2, 2, 2),
    parents: tuple[int, ...] = (),
    replace: bool = False,
) -> Parts:
    shape = Shape(parents) if parents else Shape.branching(widths)
    return Parts(target, DraftModel(draft, replace=replace), Traversal(), Fixed(shape))
