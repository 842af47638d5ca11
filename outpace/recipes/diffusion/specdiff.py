"""SpecDiff (Christopher et al. 2025): a masked diffusion model fills a window of masks behind the text.

New here: nothing. Reuses: DraftModel, in_windows or in_any_order, grow, Rejection, Fixed.
Exact at any temperature. With `steps` 1, or from left to right, tokens carry the distributions that they were
drawn from, which depend on the text and the tokens before them. With `reveal` confidence and more steps they
depend on later tokens too, carry none, and are accepted where they equal the target's own sample.

The number of forwards is that of the steps, however long the draft. The draft model is any language model
with full attention that was trained as by `outpace train specdiff`: the masks attend to one another and to
the text, but the text to itself alone, so that its KV cache is exact. The authors' models read the text two
ways too, which would have to be read again in every step. Defaults are our choice: the paper tries 1 to 5
steps.
"""

from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import grow
from outpace.drafters.model.windows import (
    Window,
    in_any_order,
    in_equal_parts,
    in_windows,
    reading_windows,
)
from outpace.models.mask_token import WINDOW_MASK, token_of
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2408.05636", family="diffusion drafters", proven_with={"mask": 0, "steps": 2})
def specdiff(
    target: Target,
    *,
    draft: Target,
    depth: int = 10,
    steps: int = 1,
    reveal: Literal["left-to-right", "confidence"] = "left-to-right",
    mask: int | None = None,
) -> Parts:
    """A chain that a diffusion model drafts in a few forwards, verified by rejection or by matching.

    Args:
        draft: model that was trained to fill windows of masks; it has the same vocabulary as the target
        depth: tokens drafted per step
        steps: forwards of the draft model, each of which reveals about as many tokens
        reveal: which tokens each forward reveals: the next ones, or those that are drafted most confidently
        mask: token that stands for a token to draft; None: that of the draft model's configuration
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}, but a draft needs a forward: use 1 or more")
    window = Window(depth, token_of(draft, mask, "mask", WINDOW_MASK, "specdiff"))
    claimed = steps == 1 or reveal == "left-to-right"
    growth = partial(in_any_order, window=window, order=partial(in_equal_parts, num_forwards=steps))
    if claimed:
        growth = partial(in_windows, growth=grow, window=window, num_forwards=steps)
    drafter = DraftModel(reading_windows(draft, window), sampled=claimed, growth=growth, rereads=True)
    return Parts(target, drafter, Rejection(), Fixed(depth))
