"""SpecTr (Sun et al. 2023): several independent draft sequences, verified together by k-sequential selection.

New here: KSequential. Reuses: LM, Fixed. Exact at any temperature: sequences are drawn with replacement, equal ones
stay separate and are tested as often as they were drawn. `widths[d]` children are drawn at depth d; the default is 8
sequences of 8 tokens that part at the root. The rule has one number to find at each node; `slack` is how much
acceptance may be given up for finding it sooner, and at 1 it is not looked for at all. At temperature 0 the sequences
start with the likeliest tokens and carry no claim.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.kseq import KSequential


@recipe(paper="arXiv:2310.15141", family="exact verification")
def spectr_kseq(
    target: Target, *, draft: Target, widths: tuple[int, ...] = (8, 1, 1, 1, 1, 1, 1, 1), slack: float = 1e-4
) -> Parts:
    return Parts(
        target, DraftModel(draft, replace=True), KSequential(slack=slack), Fixed(Shape.branching(widths))
    )
