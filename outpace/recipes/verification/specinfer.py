"""SpecInfer (Miao et al. 2024): small models draft a token tree, verified in random sibling order.

New here: nothing. Reuses: DraftModel, UnionDrafter, Rejection, Fixed. Exact at any temperature: siblings are
independent draws, each tested against the distribution of the model that proposed it, in an order that does
not depend on the tokens. Several models draft below the same root; a token that two of them draw is scored
once and tested twice.
"""

from functools import partial

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.compose.union import UnionDrafter
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import grow, merged_draws
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2305.09781", family="exact verification")
def specinfer(
    target: Target, *, drafts: tuple[Target, ...], widths: tuple[int, ...] = (1, 1, 3, 1, 1, 1, 1, 1)
) -> Parts:
    """Trees of several draft models, merged and verified by rejection in random sibling order.

    Args:
        drafts: models that draft, one or more; they have the same vocabulary as the target
        widths: children of every node at each depth of each model's tree, drawn with replacement
    """
    growth = partial(grow, children=merged_draws)
    drafter = UnionDrafter([DraftModel(draft, growth=growth) for draft in drafts])
    return Parts(target, drafter, Rejection(random_order=True), Fixed(Shape.branching(widths)))
