"""SmartSpec (Liu et al. 2024): drafts only as deep as pays at the present load, per request.

New here: AdaptiveDepth, which predicts the time of a step from the steps before it and chooses the depths
with the most expected tokens per second; the paper calls this goodput. At low load drafts are deep, at high
load short or absent, and requests whose drafts are rejected get shorter ones. PlannedRows keeps the draft
model from reading the texts of requests without drafts. Reuses: DraftModel and Rejection, or NGram and Match
without a draft model.

The paper shortens a finished draft by the draft probabilities of its tokens. Dropping a token that was drawn
because of its own draft probability would bias the output, so `trim` decides before a token is drawn: from
the draft probabilities of the tokens before it, and how often tokens of such probabilities were accepted. A
draft goes on, at most to `depth`, while the tokens that it may still add are worth their time, in the order
of their probability of being reached; acceptance rates decide only which requests get a draft. This also
saves the draft model's forwards. Lookups have no draft probabilities and are not trimmed. In trees, `width`
chains below the root, each chain ends on its own.

Exact at any temperature: the depth of a draft follows from earlier steps, and with `trim` also from tokens
drawn before it is decided, never from a token that it could remove. Depths of one request depend on the
others in its batch and on measured times, so two runs with the same seed may draw different texts from the
same distribution; greedy texts are equal.
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
    target: Target,
    *,
    draft: Target | None = None,
    depth: int = 8,
    sampled: bool = True,
    max_ngram: int = 3,
    width: int = 1,
    trim: bool = False,
) -> Parts:
    """A draft model's chain or tree, or an n-gram lookup, as deep as pays.

    Args:
        draft: model that drafts, with the same vocabulary as the target; without it, n-grams are looked up
        depth: most tokens drafted per step, on one path
        sampled: draw the draft tokens; false drafts the most probable ones
        max_ngram: tokens of the longest n-gram looked up, without a draft model
        width: first tokens that a draft model tries, each continued as a chain; 1 drafts one chain
        trim: also end a draft model's drafts where the draft probabilities of their tokens are low
    """
    if draft is None:
        controller = AdaptiveDepth(depth, target.sizes, target.chain_sizes)
        return Parts(target, NGram(max_ngram, allow_shorter=True), Match(), controller)
    if width > 1 and target.chains_only:
        raise ValueError("this target reads drafts that are chains: give width=1")
    controller = AdaptiveDepth(depth, target.sizes, target.chain_sizes, width=width, trims=trim)
    return Parts(target, PlannedRows(DraftModel(draft, sampled=sampled)), Rejection(), controller)
