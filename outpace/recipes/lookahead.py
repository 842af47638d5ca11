"""Lookahead decoding (Fu et al. 2024): the target guesses ahead for itself, in a window read beside the text.

New here: nothing. Reuses: Lookahead, Match, Fixed. Exact at any temperature: its tokens carry no claim. A window of
`window` columns and `ngram` - 1 rows of guesses goes into every forward, below the last token of the text; what the
target finds likeliest at its end makes the next row, also where tokens are sampled. Every column then is an n-gram,
kept under its first token; of those that begin with the last token of the text, the `guesses` met last are drafted.
With `lookup` the n-grams of the prompt and the text so far are kept too; a window of 0 leaves nothing but these. One
forward reads up to (`window` + `guesses`) * (`ngram` - 1) tokens. The paper takes 15, 5 and 15 for a 7B model on a GPU,
10, 5 and 10 for 13B, 7, 5 and 7 for 34B; the defaults are smaller, for machines on which tokens in a forward are dear.

Unlike in the authors' code, a window token that turns out right is accepted, and a draft accepted as a whole is
followed by one more token. The window starts from tokens all over the prompt, takes `ngram` - 2 steps to fill and is
left out near the end of a text, where it would reach beyond the last token wanted. N-grams are kept as long as their
request.

Use it on a GPU with arithmetic to spare, where there is no draft model and the text does not repeat itself.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.lookup.lookahead import Lookahead
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2402.02057", family="training-free")
def lookahead(
    target: Target, *, window: int = 5, ngram: int = 4, guesses: int = 5, lookup: bool = False
) -> Parts:
    drafter = Lookahead(window, ngram, guesses, lookup=lookup)
    return Parts(target, drafter, Match(), Fixed(drafter.depth))
