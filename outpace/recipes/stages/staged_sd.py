"""Staged speculative decoding (Spector and Ré 2023): n-grams draft for the draft model.

New here: nothing. Reuses: Staged, NGram, Match, Rejection, Fixed. Exact at any temperature: a draft carries
the draft model's distributions. N-grams are those of the request's own text, found as by prompt lookup; the
paper's come from text that the draft model wrote before. Its tree is wide near the root; here a chain is
drafted, and beside its first token others that the draft model might have given.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.compose.staged import Staged
from outpace.drafters.lookup.ngram import NGram
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2308.04623", family="stages", proven_with={"depth": 3, "siblings": 1, "max_ngram": 2})
def staged_sd(
    target: Target,
    *,
    draft: Target,
    depth: int = 6,
    inner_depth: int = 4,
    max_ngram: int = 3,
    siblings: int = 2,
) -> Parts:
    """A draft model's chain, of which n-grams draft several tokens per forward, and siblings of its first
    token.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        depth: tokens of the chain
        inner_depth: tokens that n-grams draft for a forward of the draft model
        max_ngram: tokens of the longest n-gram looked up
        siblings: further tokens tried in place of the first one; 0 for a target that reads chains only
    """
    if depth < 1 or inner_depth < 1:
        raise ValueError(f"depth is {depth} and inner_depth {inner_depth}: each is 1 or more")
    inner = Parts(draft, NGram(max_ngram, allow_shorter=True), Match(), Fixed(inner_depth))
    return Parts(target, Staged(inner, siblings=siblings), Rejection(), Fixed(depth))
