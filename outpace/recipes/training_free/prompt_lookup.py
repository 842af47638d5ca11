"""Prompt lookup (Saxena 2023): draft the continuation of the first occurrence of the text's last n-gram.

New here: nothing. Reuses: NGram, Match, Fixed. Exact at any temperature: the draft tokens carry no claim.

The longest n-grams are tried first, then shorter ones; a hash map from n-grams to the ends of their first
occurrences makes this a few operations per token. As in the author's code, only a continuation of the full
`depth` counts unless `allow_shorter` is set, which is what transformers does. Without a match the step is
plain decoding. Unlike in the author's code a draft ends with a stop token.

Use it where answers copy from their prompts: summaries, questions about a text, edits, later turns of a chat.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.lookup.ngram import NGram
from outpace.verifiers.match import Match


@recipe(paper="github.com/apoorvumang/prompt-lookup-decoding", family="training-free")
def prompt_lookup(
    target: Target, *, max_ngram: int = 3, depth: int = 10, allow_shorter: bool = False
) -> Parts:
    """N-gram lookup in the request's own text, verified by matching.

    Args:
        max_ngram: tokens of the longest n-gram looked up
        depth: tokens drafted per step
        allow_shorter: also draft continuations of fewer than `depth` tokens
    """
    return Parts(target, NGram(max_ngram, allow_shorter=allow_shorter), Match(), Fixed(depth))
