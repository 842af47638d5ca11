"""SpecBranch (Shen et al. 2025): while the target reads a draft, several branches are drafted below the place
where it is expected to end.

New here: `branches`, which begin with the most probable tokens after the draft, the more of them the less
sure the draft model is; RollbackAware, which cuts a draft before the target reads it; and RollbackPredictor,
by which it does. Reuses: DraftModel, Rejection, the schedule RunAhead. Exact at any temperature: the first
tokens of branches are chosen and so matched with the target's own, the others are drawn and tested by
rejection, and a draft is cut by what stands before a token and by its distribution, never by the token.

`outpace train specbranch --target TARGET --draft DRAFT --output FOLDER` trains the predictor; neither model
is changed. The defaults of `eps` and `k_max` are ours.
"""

from __future__ import annotations

from functools import partial

from outpace.core.contracts import Parts, Target, TargetWithLayers, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.predictors.rollback.predictor import RollbackPredictor
from outpace.recipes.overlap.specbranch.branches import branches
from outpace.recipes.overlap.specbranch.cuts import RollbackAware
from outpace.schedules.run_ahead import RunAhead
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2506.01979", family="overlap", proven_with={"overlap": False, "eps": 0.05, "depth": 2})
def specbranch(
    target: TargetWithLayers,
    *,
    draft: Target,
    predictor: RollbackPredictor,
    eps: float = 0.4,
    k_max: int = 6,
    depth: int | None = None,
    sampled: bool = True,
    overlap: bool = True,
) -> Parts:
    """A draft model that drafts branches of a draft which the target is reading.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        predictor: folder with a predictor that was trained for the draft model and the target
        eps: largest draft probability with which a draft is cut, unless all or nothing of it is expected
        k_max: branches where the draft model is least sure
        depth: tokens of a branch; none: as many as the predictor was trained for
        sampled: draw the draft tokens after the first; false drafts the most probable ones
        overlap: draft in a thread; false drafts between the target's forwards, the same texts in more time
    """
    if k_max < 1:
        raise ValueError(f"k_max is {k_max}: a draft has 1 branch or more")
    if k_max > 1 and draft.chains_only:
        raise ValueError("this draft model reads chains only: give k_max=1, or another draft model")
    predictor.prepare(draft, target)
    controller = RollbackAware(predictor, target, predictor.depth if depth is None else depth, eps)
    drafter = DraftModel(draft, sampled=sampled, growth=partial(branches, most=k_max, sampled=sampled))
    schedule = RunAhead(drafter, overlap=overlap, kept=controller.kept)
    return Parts(target, drafter, Rejection(), controller, schedule=schedule)
