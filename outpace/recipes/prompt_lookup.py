"""Prompt lookup (Saxena 2023): draft what followed the last n-gram the first time it occurred in the text so far.

New here: nothing. Reuses: NGram, Match, Fixed. Exact at any temperature: its tokens carry no claim.

N-grams of `longest` tokens are tried first, then shorter ones; a map from n-grams to where they first ended makes that
a few steps a token. As in the author's code only a continuation of the full `depth` counts; `clip` also takes shorter
ones, as transformers does. Where nothing is found a step is plain decoding's. Unlike in the author's code a draft ends
with a token that ends the text.

Use it where answers copy from their prompts: summaries, questions about a text, edits, later turns of a chat.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.lookup.ngram import NGram
from outpace.verifiers.match import Match


@recipe(paper="github.com/apoorvumang/prompt-lookup-decoding", family="training-free")
def prompt_lookup(target: Target, *, max_ngram: int = 3, depth: int = 10, clip: bool = False) -> Parts:
    return Parts(target, NGram(max_ngram, clip=clip), Match(), Fixed(depth))
