"""Lookahead decoding (Fu et al. 2024): the target drafts n-grams for itself by Jacobi iteration in a window.

New here: nothing. Reuses: Lookahead, Match, Fixed. Exact at any temperature: the draft tokens carry no claim.

The window has `window` columns and `ngram` - 1 rows of guessed tokens and is part of every forward, below the
last token of the text. The most probable tokens after its last row become its next row (Jacobi iteration),
also when sampling. Each column then is an n-gram, stored under its first token. Of the n-grams that begin
with the last token of the text, the newest `guesses` are drafted. One forward scores up to (`window` +
`guesses`) * (`ngram` - 1) tokens. The defaults are the paper's for a model of 7B parameters on a GPU; for 13B
it uses window 10, ngram 5, guesses 10 and for 34B 7, 5, 7. The preset `cpu` is smaller, for hardware on which
more tokens per forward cost time.

Unlike in the authors' code a window token may be accepted, and a fully accepted draft is followed by the
bonus token. The window is initialised with tokens of the prompt, takes `ngram` - 2 steps to fill, and is left
out near the end of a text where it would exceed max_tokens. N-grams are dropped when their request ends.

Use it on a GPU with spare compute, where there is no draft model and the text does not repeat itself.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.lookup.lookahead import Lookahead
from outpace.verifiers.match import Match

SMALL = {"window": 5, "ngram": 4, "guesses": 5}


@recipe(paper="arXiv:2402.02057", family="training-free", proven_with=SMALL, presets={"cpu": SMALL})
def lookahead(
    target: Target, *, window: int = 15, ngram: int = 5, guesses: int = 15, pool_from_prompt: bool = False
) -> Parts:
    """N-grams from the window of a Jacobi iteration, verified by matching.

    Args:
        window: columns of the window; 0 drafts from the n-gram pool alone
        ngram: tokens of each n-gram
        guesses: n-grams drafted per step
        pool_from_prompt: also store the n-grams of the prompt and of the generated text
    """
    if target.chains_only:
        raise ValueError(
            "this target reads drafts that are chains, and lookahead's window is a tree: use another method"
        )
    drafter = Lookahead(window, ngram, guesses, pool_from_prompt=pool_from_prompt)
    return Parts(target, drafter, Match(), Fixed(drafter.depth))
