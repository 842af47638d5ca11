"""RSD-S (Jeon et al. 2024): stochastic beam search draws the paths of the tree without replacement.

New here: beam. Reuses: DraftModel, Rejection, Fixed. Exact at any temperature: which node gets another child
depends on earlier draws, never on the child about to be drawn, so recursive rejection in drawing order stays
exact. Improbable paths end early. The paper's beam has the same width at every depth. At temperature 0 the
most probable paths are kept, without a claim.
"""

from functools import partial

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.stochastic_beam import beam
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2402.14160", family="exact verification")
def rsd_s(target: Target, *, draft: Target, widths: tuple[int, ...] = (6, 6, 6, 6, 6)) -> Parts:
    """A tree drawn by stochastic beam search, verified by recursive rejection.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        widths: nodes kept at each depth, distributed over parents in any way
    """
    drafter = DraftModel(draft, growth=partial(beam, widths=widths))
    return Parts(target, drafter, Rejection(), Fixed(len(widths)))
