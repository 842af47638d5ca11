"""PEARL (Liu et al. 2024): a draft model drafts the next chain while the target reads the one before.

New here: nothing. Reuses: DraftModel, Rejection, Fixed, the schedule RunAhead. Exact at any temperature: the
first token of the chain in progress is tested with the target's distribution at the end of the one before,
like any other drafted token. The paper's draft length is the ratio of the two models' speeds.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.schedules.run_ahead import RunAhead
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2408.11850", family="overlap", proven_with={"depth": 3, "overlap": False})
def pearl(
    target: Target, *, draft: Target, depth: int = 5, sampled: bool = True, overlap: bool = True
) -> Parts:
    """A draft model that drafts while the target works.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        depth: tokens drafted per step; best near the target's time per token over the draft model's
        sampled: draw the draft tokens; false drafts the most probable ones
        overlap: draft in a thread; false drafts between the target's forwards, the same texts in more time
    """
    drafter = DraftModel(draft, sampled=sampled)
    return Parts(target, drafter, Rejection(), Fixed(depth), schedule=RunAhead(drafter, overlap=overlap))
