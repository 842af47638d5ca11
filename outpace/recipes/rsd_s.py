"""RSD-S (Jeon et al. 2024): a stochastic beam search draws whole paths without replacement; unlikely ones end early.

New here: beam. Reuses: LM, Rejection, Fixed. Exact at any temperature: which node gets another child depends on what
was drawn before, never on the child about to be drawn, so recursive rejection in the order of drawing stays true.
`widths[d]` nodes are kept at depth d, however they are spread over parents; the paper's beam is as wide everywhere. At
temperature 0 the likeliest paths are kept, without a claim.
"""

from functools import partial

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.stochastic_beam import beam
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2402.14160", family="exact verification")
def rsd_s(target: Target, *, draft: Target, widths: tuple[int, ...] = (6, 6, 6, 6, 6)) -> Parts:
    return Parts(
        target, DraftModel(draft, growth=partial(beam, widths=widths)), Rejection(), Fixed(len(widths))
    )
