"""Double (Shen et al. 2026): retrieval speeds up the draft model and adds to what the target reads.

New here: the target's own looked-up tokens after the pending draft. Reuses: Staged with prompt lookup, NGram,
Rejection, Fixed, the schedule RunAhead. Exact at any temperature: the draft model verifies looked-up tokens
exactly, so that its drafts are drawn from its own distribution, as the claim says; what the target looks up
has no claim and is matched. The paper checks both by their most probable tokens, at temperature 0. Where the
text repeats itself, a step gives several tokens after a pending draft, so that speed is not bound by the
ratio of the two models' times. Not built: an index that persists between requests, and one of rejected
candidates.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.compose.staged import Staged
from outpace.drafters.lookup.ngram import NGram
from outpace.recipes.overlap.double.with_lookup import WithLookup
from outpace.schedules.run_ahead import RunAhead
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection


@recipe(
    paper="arXiv:2601.05524",
    family="overlap",
    proven_with={"depth": 3, "lookup_depth": 2, "max_ngram": 2, "overlap": False},
)
def double(
    target: Target,
    *,
    draft: Target,
    depth: int = 8,
    lookup_depth: int = 10,
    max_ngram: int = 3,
    overlap: bool = True,
) -> Parts:
    """A draft model, sped up by lookups, that drafts while the target reads drafted and looked-up tokens.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        depth: tokens drafted per step
        lookup_depth: most tokens that are looked up at once, for the draft model and for the target
        max_ngram: longest n-gram of the end of the text that is looked up in it
        overlap: draft in a thread; false drafts between the target's forwards, the same texts in more time
    """
    staged = Staged(Parts(draft, NGram(max_ngram, allow_shorter=True), Match(), Fixed(lookup_depth)))
    drafter = WithLookup(staged, NGram(max_ngram, allow_shorter=True), lookup_depth)
    schedule = RunAhead(drafter, overlap=overlap, found=drafter.found)
    return Parts(target, drafter, Rejection(), Fixed(depth), schedule=schedule)
