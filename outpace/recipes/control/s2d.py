"""S2D (Kavehzadeh et al. 2024): every draft token comes from the first of a draft model's exits that is sure.

New here: ExitsDrafter, which goes to deeper exits of a draft model until one is sure of the next token, and
Exits, in which deeper layers read earlier tokens together when they are first needed. Reuses: grow,
Rejection, Fixed. Exact at any temperature: the exit follows from the text before the token, whose claim is
the distribution of the exit that was used; `sampled` false drafts the most probable tokens, without a claim.

`outpace train s2d` trains the exits of a draft model at once, for the data and not for one target: the same
draft model serves all targets with its tokenizer. The paper does not say whether a token of which the deepest
exit is unsure is drafted; here it is, as it has been computed, and the draft ends with it. Its thresholds are
taken as 0.9 for the first exit, 0.1 less for each further one and 0.4 for the deepest. The draft model runs
eagerly, even if it is compiled.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.exits_drafter import ExitsDrafter
from outpace.models.slim.exits import default_thresholds, exits_of, usual_exits
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2407.01955", family="control and routing")
def s2d(
    target: Target,
    *,
    draft: Target,
    exits: tuple[int, ...] | None = None,
    thresholds: tuple[float, ...] | None = None,
    depth: int = 8,
    sampled: bool = True,
) -> Parts:
    """A chain from a draft model with exits, verified by rejection token by token.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        exits: numbers of layers before each exit; none: those it was trained with, or half, 3/4 and all
        thresholds: largest probability from which each exit is sure; none: 0.9, 0.8 ..., 0.4 for the last
        depth: most tokens drafted per step
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    chosen = usual_exits(draft) if exits is None else exits
    model = exits_of(draft, chosen)
    sure = default_thresholds(len(chosen)) if thresholds is None else thresholds
    if len(sure) != len(chosen):
        raise ValueError(f"there are {len(sure)} thresholds for {len(chosen)} exits: give one for each exit")
    drafter = ExitsDrafter(model, sure, sampled=sampled, max_length=draft.max_length)
    return Parts(target, drafter, Rejection(), Fixed(depth))
