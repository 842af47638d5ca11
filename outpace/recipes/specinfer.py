"""SpecInfer (Miao et al. 2024): one or several small models draft a token tree, verified in random sibling order.

New here: nothing. Reuses: LM, Together, Rejection, Fixed. Exact at any temperature: siblings are independent draws,
each tested against the distribution of the model that proposed it, in an order that does not look at the tokens. The tree
expands at the depths where `widths` is above one; several drafts are merged below the same root, equal tokens of two
models kept as two candidates.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.compose.union import UnionDrafter
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2305.09781", family="exact verification")
def specinfer(
    target: Target, *, drafts: tuple[Target, ...], widths: tuple[int, ...] = (1, 1, 3, 1, 1, 1, 1, 1)
) -> Parts:
    drafter = UnionDrafter([DraftModel(draft, replace=True) for draft in drafts])
    return Parts(target, drafter, Rejection(random_order=True), Fixed(Shape.branching(widths)))
