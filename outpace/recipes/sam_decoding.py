"""SAM Decoding (Hu et al. 2025): draft what followed the longest end of the text that occurred before.

New here: nothing. Reuses: Automata, LookingUp, Recycling, LM, Match, Fixed. Exact at any temperature: no token carries
a claim.

A suffix automaton of the prompt and the text so far finds that end in constant time a token, however long it is. With
`corpus`, a file of `outpace index build --kind suffix-automaton`, a second one finds it in a corpus and is asked where
its match is longer by more than `bias` tokens. With an `auxiliary`, matches of fewer than `shortest` tokens, in the
corpus less `bias`, are left to it, and the others give chains of `depth` tokens. It is `token-recycling`, whose table
learns from every node that the target reads and fills a tree of `nodes`, or a model, whose likeliest tokens fill a tree
of `widths`. Alone every match is used, `alone` nodes at most and `least` + 4 for each matched token; the corpus then
gives a tree of the likeliest continuations, by count, 8 nodes a depth.

Use it where the text repeats its prompt or itself, and with a corpus where it repeats that. It costs no model and a few
microseconds a token with numba, which the extra `retrieval` brings; memory grows with the request, by about 120 bytes a
token, and a corpus has 50.

Unlike in the paper the model's tree is fixed, where EAGLE-2's follows its beliefs; `nodes` is smaller than the 80 of
the paper's token recycling, as in `token-recycling`; and alone it drafts 15 tokens behind every match, where the paper
begins with 5 and goes up to 60 (`--least 1 --alone 60`): a longer draft is taken from an earlier, shorter match where
the longest has fewer tokens to offer, so that edits and code of the zoo had more tokens a step with 15.
"""

from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.lookup.rank_template import rank_template
from outpace.drafters.lookup.suffix_automata import SuffixAutomatonLookup
from outpace.drafters.lookup.text_lookup import LookupDrafter
from outpace.drafters.lookup.token_recycling import TokenRecycling
from outpace.drafters.model.draft_model import DraftModel
from outpace.indexes import store
from outpace.indexes.automata.static import StaticAutomaton
from outpace.indexes.store import SuffixAutomatonFile
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2411.10666", family="training-free")
def sam_decoding(
    target: Target,
    *,
    corpus: SuffixAutomatonFile | None = None,
    bias: int = 5,
    alone: int = 15,
    least: int = 11,
    auxiliary: Literal["token-recycling"] | Target | None = None,
    min_ngram: int = 5,
    depth: int = 40,
    widths: tuple[int, ...] = (4, 2, 2),
    nodes: int = 15,
) -> Parts:
    index = store.open_index(StaticAutomaton, corpus, target.vocab)
    if auxiliary is None:
        return Parts(
            target, LookupDrafter(SuffixAutomatonLookup(index, bias=bias, least=least)), Match(), Fixed(alone)
        )
    lookup = SuffixAutomatonLookup(index, min_ngram=min_ngram, bias=bias)
    if auxiliary == "token-recycling":
        drafter = LookupDrafter(lookup, TokenRecycling(target.vocab), rank_template(nodes, width=8))
    else:
        drafter = LookupDrafter(lookup, DraftModel(auxiliary, sampled=False), Shape.branching(widths))
    return Parts(target, drafter, Match(), Fixed(depth))
