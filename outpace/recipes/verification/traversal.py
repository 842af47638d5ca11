"""Traversal verification (Weng et al. 2025): a drawn tree is verified from its leaves up to its root.

New here: nothing. Reuses: DraftModel, Traversal, Fixed. Exact at any temperature: whole paths are accepted or
rejected, so a branch that a top-down rule would have rejected early can still be accepted. For a chain
(`widths` all 1) it equals block verification. At temperature 0 the children are the most probable tokens and
carry no claim, and it accepts as much as other rules.
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
    """A tree of draws, verified from the leaves to the root.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        widths: children of every node at each depth; the default is the paper's binary tree
        parents: parent of each draft node, 0 is the root; a tree of any shape in place of `widths`
        replace: draw siblings with replacement
    """
    shape = Shape(parents) if parents else Shape.branching(widths)
    return Parts(target, DraftModel(draft, replace=replace), Traversal(), Fixed(shape))
