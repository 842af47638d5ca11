"""SmartSpec (Liu et al. 2024): drafts only as deep as pays at the present load, per request.

New here: AdaptiveDepth, which predicts the time of a step from the steps before it and chooses the depths
with the most expected tokens per second; the paper calls this goodput. At low load drafts are deep, at high
load short or absent, and requests whose drafts are rejected get shorter ones. PlannedRows keeps the draft
model from reading the texts of requests without drafts. Reuses: DraftModel and Rejection, or NGram and Match
without a draft model. Exact at any temperature: a depth follows from earlier steps alone.

The paper also shortens drafts after the fact by their tokens' draft probabilities; this is left out. Depths
of one request depend on the others in its batch and on measured times, so two runs with the same seed may
draw different texts from the same distribution; greedy texts are equal.
"""

from outpace.controllers.adaptive_depth import AdaptiveDepth
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.compose.planned_rows import PlannedRows
from outpace.drafters.lookup.ngram import NGram
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2406.14066", family="batching and serving")
def smartspec(
    target: Target, *, draft: Target | None = None, depth: int = 8, sampled: bool = True, max_ngram: int = 3
) -> Parts:
    """A draft model's chain, or an n-gram lookup, as deep as pays.

    Args:
        draft: model that drafts, with the same vocabulary as the target; without it, n-grams are looked up
        depth: most tokens drafted per step
        sampled: draw the draft tokens; false drafts the most probable ones
        max_ngram: tokens of the longest n-gram looked up, without a draft model
    """
    controller = AdaptiveDepth(depth, target.sizes)
    if draft is None:
        return Parts(target, NGram(max_ngram, allow_shorter=True), Match(), controller)
    return Parts(target, PlannedRows(DraftModel(draft, sampled=sampled)), Rejection(), controller)
