"""SAM Decoding (Hu et al. 2025): draft the continuation of the longest repeated suffix of the text.

New here: nothing. Reuses: SuffixAutomatonLookup, LookupDrafter, TokenRecycling, DraftModel, FeatureDrafter,
eagle2_tree, Match, Fixed. Exact at any temperature: no draft token carries a claim.

A suffix automaton of the prompt and the generated text finds the longest repeated suffix in constant time per
token. With an `index`, a second automaton finds it in a corpus and is used where its match is longer by more
than `bias` tokens. With an `auxiliary` drafter, which drafts in the rows whose match is shorter than
`min_ngram`, a match gives a chain of `depth` tokens. Without one, every match is used and the draft grows
with its length, from 5 tokens to 60; the index then gives a tree of the most frequent continuations, 8 nodes
per depth.

Use it where the text repeats its prompt or itself, and with an index where it repeats a corpus. It needs no
draft model and takes a few microseconds per token with numba (extra `retrieval`). The automaton takes about
120 bytes per token of a request, 50 per token of a corpus.

With `head`, a draft head of EAGLE or EAGLE-3, the auxiliary drafts are EAGLE-2's trees, as in the paper; the
tree of an auxiliary model has a fixed shape. Where fewer tokens follow the longest match than are drafted, an
earlier, shorter match with more is used. The preset `cpu` drafts 15 tokens after every match, however long,
and 15 in the tree of token recycling: on edits and code, this project's test models (the zoo) got more tokens
per step with that on two CPU cores than with the paper's 5 to 60.
"""

from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.lookup.rank_template import TOKEN_RECYCLING_LEVELS, rank_template
from outpace.drafters.lookup.suffix_automata import SuffixAutomatonLookup
from outpace.drafters.lookup.text_lookup import LookupDrafter
from outpace.drafters.lookup.token_recycling import TokenRecycling
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.dynamic_tree import EAGLE2_DEPTH, eagle2_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.indexes import store
from outpace.indexes.automata.static import StaticAutomaton
from outpace.indexes.store import SuffixAutomatonFile
from outpace.models.heads.head_model import AnyEagleModel
from outpace.verifiers.match import Match


@recipe(
    paper="arXiv:2411.10666",
    family="training-free",
    presets={"cpu": {"standalone_depth": 15, "length_offset": 11, "nodes": 15}},
)
def sam_decoding(
    target: Target,
    *,
    index: SuffixAutomatonFile | None = None,
    bias: int = 5,
    standalone_depth: int = 60,
    length_offset: int = 1,
    auxiliary: Literal["token-recycling"] | Target | None = None,
    head: AnyEagleModel | None = None,
    min_ngram: int = 5,
    depth: int = 40,
    widths: tuple[int, ...] = (4, 2, 2),
    nodes: int | None = None,
) -> Parts:
    """The continuation of the longest repeated suffix, found by suffix automata, verified by matching.

    Args:
        index: file of `outpace index build --kind suffix-automaton`
        bias: tokens by which a match in the index must be longer than one in the request to be used
        standalone_depth: maximum number of tokens drafted per step without `auxiliary`
        length_offset: without `auxiliary` the draft has this many tokens plus 4 per matched token
        auxiliary: `token-recycling` or a draft model, for rows whose match is shorter than `min_ngram`
        head: folder with a head of EAGLE or EAGLE-3, in place of `auxiliary`
        min_ngram: minimum length of a match if there is an `auxiliary` or a `head`
        depth: tokens drafted per step from a match when there is an `auxiliary` or a `head`
        widths: children of every node at each depth of the auxiliary model's tree
        nodes: draft tokens of the auxiliary token-recycling tree; none: the paper's 80
    """
    automaton = store.open_index(StaticAutomaton, index, target.vocab)
    if auxiliary is not None and head is not None:
        raise ValueError("auxiliary and head are two drafters for short matches: give one of them")
    if auxiliary is None and head is None:
        lookup = SuffixAutomatonLookup(automaton, bias=bias, length_offset=length_offset)
        return Parts(target, LookupDrafter(lookup), Match(), Fixed(standalone_depth))
    lookup = SuffixAutomatonLookup(automaton, min_ngram=min_ngram, bias=bias)
    if head is not None:
        trees = FeatureDrafter(head, target.vocab, eagle2_tree, sampled=False)
        drafter = LookupDrafter(lookup, trees, EAGLE2_DEPTH)
    elif auxiliary == "token-recycling":
        levels = TOKEN_RECYCLING_LEVELS if nodes is None else ()
        recycled = rank_template(nodes or 0, levels, width=8)
        drafter = LookupDrafter(lookup, TokenRecycling(target.vocab), recycled)
    else:
        assert auxiliary is not None
        drafter = LookupDrafter(lookup, DraftModel(auxiliary, sampled=False), Shape.branching(widths))
    return Parts(target, drafter, Match(), Fixed(depth))
