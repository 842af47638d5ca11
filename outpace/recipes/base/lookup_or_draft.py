"""Lookup or draft: suffix lookup or a draft model, in each row and step what is expected to be faster.

New here: SourceChoice, which predicts the tokens per second of a looked-up draft from the length of its
match, and of a model's draft from its acceptance rate, with measured times of forwards, and LookupOrDraft,
which drafts what it chooses. Reuses: SuffixAutomatonLookup, DraftModel, head_chain, PlannedRows, Rejection.
It combines SAM Decoding's lookup with SmartSpec's choice by goodput, the expected number of tokens per
second; SAM Decoding itself looks up whenever the match has at least a fixed number of tokens.

A looked-up draft is what followed the most recent earlier occurrence of the longest suffix of the text that
has one. If the text repeats with a period no longer than that suffix, the draft repeats that period.

Exact at any temperature: before a token of the step is drawn it is decided, from committed tokens, earlier
steps and measured times, whether a row's draft is looked up or drawn, and how long it is. Since times are
measured, two runs with the same seed may draw different texts from the same distribution; greedy texts are
equal.

Use it when answers repeat their prompts in some places only, or when you do not know. A draft model reads the
tokens that were generated from lookups before it drafts again.
"""

from outpace.controllers.source_choice import SourceChoice
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.compose.lookup_or_draft import LookupOrDraft
from outpace.drafters.compose.planned_rows import PlannedRows
from outpace.drafters.lookup.suffix_automata import SuffixAutomatonLookup
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.head_chain import head_chain, levels_per_forward, longest_chain, longest_text
from outpace.models.heads.opened_head import ChainHead
from outpace.verifiers.rejection import Rejection


@recipe(paper="ideas from arXiv:2411.10666, arXiv:2406.14066", family="base", one_of=("draft", "head"))
def lookup_or_draft(
    target: Target,
    *,
    draft: Target | None = None,
    head: ChainHead | None = None,
    depth: int = 6,
    lookup_depth: int = 30,
    sampled: bool = True,
) -> Parts:
    """The continuation of a repeated suffix or a drafted chain, verified by rejection.

    Args:
        draft: draft model with the target's vocabulary; give it or `head`
        head: folder with a draft head of any kind that was trained for the target; give it or `draft`
        depth: most tokens drafted per step by the model or the head
        lookup_depth: most tokens drafted per step from a repeated suffix
        sampled: draw the drafted tokens; false drafts the most probable ones
    """
    if draft is not None and head is None:
        max_length, levels = draft.max_length, 1
        drafter = PlannedRows(DraftModel(draft, sampled=sampled))
    elif head is not None and draft is None:
        depth = longest_chain(head, depth)
        drafter = head_chain(head, target.vocab, depth, sampled=sampled)
        max_length, levels = longest_text(head), levels_per_forward(head, depth)
    else:
        raise ValueError("draft and head are two drafters of the chain: give one of them")
    if depth < 1:
        raise ValueError(f"depth is {depth}: use 1 or more, or the method prompt-lookup")
    lookup = SuffixAutomatonLookup(min_ngram=1, recent=True)  # min_ngram: of at least one token
    controller = SourceChoice(
        lookup_depth,
        depth,
        target.sizes,
        target.chain_sizes,
        max_length=max_length,
        levels_per_forward=levels,
    )
    return Parts(target, LookupOrDraft(lookup, drafter), Rejection(), controller)
