"""SpecDiff-2 (Sandler et al. 2026): several drafts from one forward over a window, merged into a tree.

New here: draws at a temperature of their own. Reuses: DraftModel, in_windows, grow, merged_draws, Rejection,
Match, Fixed.
Exact at any temperature. With `verification` rejection the tokens carry the distributions that they were
drawn from, independently of one another; match accepts them where they equal the target's own sample.

The paper also selects the draft that the target finds best, and accepts its tokens by matching. That is left
out, as matching in the whole tree, which the target has read for the selection, accepts at least as many.
Selecting and then accepting by rejection would be biased. The number of drafts is our choice: the paper has
up to 8. At temperature 0 nothing is drawn: the drafts begin with the most probable tokens, and go on with
the most probable ones.
"""

from dataclasses import replace
from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Shape, Target, recipe
from outpace.core.tree import TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import Read, grow, merged_draws
from outpace.drafters.model.windows import Window, in_windows, reading_windows
from outpace.models.mask_token import WINDOW_MASK, token_of
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection


def merged_drafts(
    ctx: Context, plan: Plan, read: Read, *, window: Window, temperature: float, claimed: bool
) -> TokenTree:
    """Independent drafts from one window, which share the tokens that they begin with."""
    sampling = [replace(each, temperature=temperature * each.temperature) for each in ctx.sampling]
    own = replace(ctx, sampling=tuple(sampling))
    tree = in_windows(own, plan, read, growth=partial(grow, children=merged_draws), window=window)
    return tree if claimed else replace(tree, claim=None)


@recipe(
    paper="arXiv:2511.00606",
    family="diffusion drafters",
    proven_with={"mask": 0, "depth": 2, "num_drafts": 2},
)
def specdiff2(
    target: Target,
    *,
    draft: Target,
    depth: int = 16,
    num_drafts: int = 4,
    draft_temperature: float = 1.5,
    verification: Literal["rejection", "match"] = "rejection",
    mask: int | None = None,
) -> Parts:
    """Drafts that a diffusion model gives in one forward, verified together as a tree.

    Args:
        draft: model that was trained to fill windows of masks; it has the same vocabulary as the target
        depth: tokens of each draft
        num_drafts: drafts per step; their equal beginnings are one path of the tree
        draft_temperature: of drafts, in proportion to the request's
        verification: by rejection, or by matching with the target's own samples
        mask: token that stands for a token to draft; None: that of the draft model's configuration
    """
    if num_drafts < 1:
        raise ValueError(f"num_drafts is {num_drafts}: use 1 or more")
    if draft_temperature <= 0:
        raise ValueError(f"draft_temperature is {draft_temperature}: use a number above 0")
    claimed = verification == "rejection"
    window = Window(depth, token_of(draft, mask, "mask", WINDOW_MASK, "specdiff2"))
    growth = partial(merged_drafts, window=window, temperature=draft_temperature, claimed=claimed)
    drafter = DraftModel(reading_windows(draft, window), sampled=claimed, growth=growth, rereads=True)
    shape = Shape.branching((num_drafts, *(1,) * (depth - 1)))
    return Parts(target, drafter, Rejection() if claimed else Match(), Fixed(shape))
