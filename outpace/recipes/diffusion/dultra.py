"""dUltra (Chen et al. 2025): a planner decides which masks of a diffusion model's window are filled together.

New here: RevealPlanner, as_many_as_expected. Reuses: DraftModel, in_any_order, Match, Fixed. Exact at any
temperature: tokens depend on later ones and on which ones the planner chose, so they carry no claim and are
accepted where they equal the target's own sample.

The paper generates with the diffusion model alone; that its planner drafts for a target is our reading. After
each forward the planner, a small network on the hidden states at the masks, says with what probability each
mask's token is revealed. The most probable ones are, as many as the probabilities' sum, rounded down, and at
least one. So a draft takes few forwards where its tokens are easy and up to `depth` where they are hard. With
`specdiff` and the order of confidence the number of forwards is given.

`outpace train dultra --target TARGET --draft DRAFT --output FOLDER` trains the planner for a draft model of
`outpace train specdiff`, which is not changed. The depth is that of `specdiff`; the paper's blocks have 32 or
128 masks.
"""

from collections.abc import Sequence
from functools import partial

import torch

from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Target, recipe
from outpace.core.tree import TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import Read, ReadHidden
from outpace.drafters.model.windows import Window, as_many_as_expected, in_any_order, reading_windows
from outpace.models.mask_token import WINDOW_MASK, token_of
from outpace.models.predictors.reveals.predictor import RevealPlanner, with_shares
from outpace.verifiers.match import Match


def planned(ctx: Context, plan: Plan, read: Read, *, window: Window, planner: RevealPlanner) -> TokenTree:
    """A chain from a window that is filled as the planner says."""
    reader: object = read
    assert isinstance(reader, ReadHidden)

    def value(nodes: Sequence[int], shares: Sequence[float], draft_probs: Sequence[float]) -> list[float]:
        return planner.probs(with_shares(reader.hidden(nodes), torch.tensor(shares)))

    return in_any_order(ctx, plan, read, window=window, order=as_many_as_expected, value=value)


@recipe(paper="arXiv:2512.21446", family="diffusion drafters", proven_with={"mask": 1, "depth": 3})
def dultra(
    target: Target,
    *,
    draft: Target,
    predictor: RevealPlanner,
    depth: int = 10,
    mask: int | None = None,
) -> Parts:
    """A chain that a diffusion model drafts in as many forwards as a planner says, verified by matching.

    Args:
        draft: model that was trained to fill windows of masks; it has the same vocabulary as the target
        predictor: folder with a planner that was trained for the draft model and the target
        depth: tokens drafted per step
        mask: token that stands for a token to draft; None: that of the draft model's configuration
    """
    predictor.prepare(draft, target)
    window = Window(depth, token_of(draft, mask, "mask", WINDOW_MASK, "specdiff"))
    growth = partial(planned, window=window, planner=predictor)
    drafter = DraftModel(
        reading_windows(draft, window), sampled=False, growth=growth, rereads=True, keeps_hidden=True
    )
    return Parts(target, drafter, Match(), Fixed(depth))
