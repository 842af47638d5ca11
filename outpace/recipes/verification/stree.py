"""STree (Wu et al. 2025): trees for state space models, each layer of which reads a tree at once.

New here: nothing. Reuses: DraftModel, Match, Fixed. Exact at any temperature. The paper's operator is part
of a model's forward, so every method with trees uses it: layers of Mamba 2 read a tree in one masked product
per head (`models/eager/mamba2_product.py`). Beyond the paper, those with the gated delta rule solve one
masked system per head (`models/eager/delta_product.py`). Other recurrent layers read a tree level by level,
attention with a tree mask.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2505.14969", family="exact verification")
def stree(target: Target, *, draft: Target, widths: tuple[int, ...] = (3, 2, 1, 1)) -> Parts:
    """A tree of a draft model's most probable tokens, verified by matching: for recurrent layers.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        widths: children of every node at each depth, the most probable tokens
    """
    drafter = DraftModel(draft, sampled=False)
    return Parts(target, drafter, Match(), Fixed(Shape.branching(widths)))
