"""SpecTr (Sun et al. 2023): several independent draft sequences, verified together by k-sequential selection.

New here: KSequential. Reuses: DraftModel, Fixed. Exact at any temperature: sequences are drawn with
replacement. Equal prefixes are one node, scored once, and tested as often as they were drawn. The default is
8 sequences of 8 tokens that branch at the root only. At each node the rule searches for a scale rho between 1
and the number of draws. At temperature 0 the sequences start with the most probable tokens and carry no
claim.
"""

from functools import partial

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import grow, merged_draws
from outpace.verifiers.kseq import KSequential


@recipe(paper="arXiv:2310.15141", family="exact verification")
def spectr_kseq(
    target: Target,
    *,
    draft: Target,
    widths: tuple[int, ...] = (8, 1, 1, 1, 1, 1, 1, 1),
    tolerance: float = 1e-4,
) -> Parts:
    """Independent draws, verified by k-sequential selection.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        widths: children of every node at each depth, drawn with replacement
        tolerance: acceptance probability given up at most for a shorter search for rho; 1 skips the search
    """
    drafter = DraftModel(draft, growth=partial(grow, children=merged_draws))
    return Parts(target, drafter, KSequential(tolerance=tolerance), Fixed(Shape.branching(widths)))
