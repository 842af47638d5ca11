"""EMS-SD (Ni et al. 2025): drafts of a length of their own in each row of a batch, verified without padding.

New here: nothing. Reuses: NGramLookup, LookupDrafter, DraftModel, Match or Rejection, Fixed. Exact at any
temperature: tokens looked up carry no claim, and a draft model's draws claim the distribution they were drawn
from. Which of the two drafts a row depends on committed tokens alone.

The paper's method is how outpace decodes every batch: one forward processes the last token and the draft of
each row, one after another, without padding tokens, and each row has KV entries of its own, which grow by
what that row accepted. It matters most where the lengths of drafts differ, and here they do: each row drafts
what followed its last n-gram the first time it occurred in its text, up to `depth` tokens, often none. With a
`fallback` model the rows without a match draft `fallback_depth` tokens from it.

Use it for batches of summaries, edits and questions about a text. Eager forwards pad neither tokens nor keys.
Forwards compiled for a CPU process a batch's tokens without padding between rows too, and fill up the end to
one of a few sizes; CUDA graphs pad every row. The KV cache of compiled forwards is allocated in blocks; an
eager slot is allocated for its longest text at once.

The paper is about greedy decoding and publishes lookup in the prompt and a draft model as two separate
drafters; its settings are not ours.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.lookup.ngram import NGramLookup
from outpace.drafters.lookup.text_lookup import LookupDrafter
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection


@recipe(paper="aclanthology.org/2025.naacl-long.471", family="batching and serving")
def ems_sd(
    target: Target,
    *,
    depth: int = 7,
    max_ngram: int = 3,
    fallback: Target | None = None,
    fallback_depth: int = 3,
    sampled: bool = True,
) -> Parts:
    """Drafts of unequal lengths, from n-gram lookup and a draft model, without padding.

    Args:
        depth: maximum number of tokens drafted per step
        max_ngram: tokens of the longest n-gram looked up
        fallback: draft model for rows without a match
        fallback_depth: tokens that the fallback model drafts
        sampled: draw the fallback model's tokens; false drafts the most probable ones
    """
    lookup = NGramLookup(max_ngram, allow_shorter=True)
    if fallback is None:
        return Parts(target, LookupDrafter(lookup), Match(), Fixed(depth))
    drafter = LookupDrafter(lookup, DraftModel(fallback, sampled=sampled), fallback_depth)
    return Parts(target, drafter, Rejection(), Fixed(depth))
