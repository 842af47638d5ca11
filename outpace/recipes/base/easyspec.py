"""EasySpec (Wu et al. 2025): while it drafts, attention of several layers of the draft model reads one input.

New here: GroupedDraft, the draft model's approximate forwards. Reuses: DraftModel, Rejection, Fixed. Exact at
any temperature: tokens carry the distribution of the approximate forward that they were drawn from.

Keys and values that were computed in groups are dropped after every draft. The next one begins with a usual
forward over the accepted tokens and the bonus token, which the paper calls calibration: it writes exact keys
and values and gives the distribution of the first draft token.

In the paper the attention sub-layers of a group run at the same time on several GPUs, which is faster. Here
they run one after the other: a draft costs as much as one of speculative-sampling and is accepted less often.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.slim.grouped_layers import DeepDraft, grouped
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2502.02493", family="base")
def easyspec(
    target: Target, *, draft: DeepDraft, group_size: int = 4, depth: int = 5, sampled: bool = True
) -> Parts:
    """A draft model's chain, drafted with attention in groups of layers and verified by rejection.

    Args:
        draft: model of at least 4 layers that drafts; it has the same vocabulary as the target
        group_size: most layers whose attention reads one input; 1 drafts with the model as it is
        depth: tokens drafted per step
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    drafter = DraftModel(grouped(draft, group_size), sampled=sampled, keeps_drafted=False)
    return Parts(target, drafter, Rejection(), Fixed(depth))
