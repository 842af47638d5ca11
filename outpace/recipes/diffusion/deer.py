"""DEER (Cheng et al. 2025): one forward fills a long window of masks, behind which stands a token.

New here: nothing. Reuses: DraftModel, in_windows, grow, Rejection, Fixed. Exact at any temperature: each
token is drawn from a distribution that depends on the text alone, and carries it. So a wrong token does not
make those after it worse, and the first rejection ends the step.

The token behind says where the window ends, as in training (`outpace train deer`, in two stages). The draft
model reads the text causally, as that of `specdiff`.
"""

from functools import partial

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import grow
from outpace.drafters.model.windows import Window, in_windows, reading_windows
from outpace.models.mask_token import WINDOW_END, WINDOW_MASK, token_of
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2512.15176", family="diffusion drafters", proven_with={"mask": 0, "end": 1})
def deer(
    target: Target, *, draft: Target, depth: int = 32, mask: int | None = None, end: int | None = None
) -> Parts:
    """A chain that a diffusion model drafts in one forward, verified by rejection.

    Args:
        draft: model that was trained to fill windows of masks; it has the same vocabulary as the target
        depth: tokens drafted per step
        mask: token that stands for a token to draft; None: that of the draft model's configuration
        end: token behind the masks; None: that of the draft model's configuration
    """
    tokens = (
        token_of(draft, mask, "mask", WINDOW_MASK, "deer"),
        token_of(draft, end, "end", WINDOW_END, "deer"),
    )
    window = Window(depth, *tokens)
    growth = partial(in_windows, growth=grow, window=window)
    drafter = DraftModel(reading_windows(draft, window), growth=growth, rereads=True, num_behind=1)
    return Parts(target, drafter, Rejection(), Fixed(depth))
