"""Auto: looked-up text, a draft model's or head's chain, or no draft, whatever is expected to be the fastest.

New here: nothing; `lookup-or-draft` chooses in the same way, and needs a model. Reuses: SourceChoice, which
predicts the tokens per second of each source from the length of a match, from acceptance rates and from
measured times of forwards, LookupOrDraft, SuffixAutomatonLookup, DraftModel, head_chain, PlannedRows,
SelfDraft, Rejection. It is no paper's method: the lookup is that of SAM Decoding, and choosing by
expected tokens per second is SmartSpec's idea.

A target that was trained with early exits (`outpace train layerskip`) drafts with its first layers if neither
a draft model nor a head is given.

With an `index` the continuation comes from a corpus where the match there is longer than the one in the text
by more than five tokens.

A looked-up draft is what followed the most recent earlier occurrence of the longest suffix of the text that
has one. If the text repeats with a period no longer than that suffix, the draft repeats that period.

Exact at any temperature: before a token of the step is drawn it is decided, from committed tokens, earlier
steps and measured times, what drafts and how much. Since times are measured, two runs with the same seed may
draw different texts from the same distribution; greedy texts are equal.

What the target, the draft and the machine cost is learned in the first steps and kept for later requests. A
bandit over whole methods (`ucb-spec`) needs more steps than most requests have.
"""

from outpace.controllers.source_choice import SourceChoice
from outpace.core.contracts import Drafter, Parts, Target, recipe
from outpace.drafters.compose.lookup_or_draft import LookupOrDraft
from outpace.drafters.compose.planned_rows import PlannedRows, SelfDraft
from outpace.drafters.lookup.suffix_automata import SuffixAutomatonLookup
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.head_chain import head_chain, levels_per_forward, longest_chain, longest_text
from outpace.drafters.no_draft import NoDraft
from outpace.indexes import store
from outpace.indexes.automata.static import StaticAutomaton
from outpace.indexes.store import SuffixAutomatonFile
from outpace.models.heads.opened_head import ChainHead
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import num_layers, trained_exit, without
from outpace.verifiers.rejection import Rejection


@recipe(
    paper="ideas from arXiv:2411.10666, arXiv:2406.14066",
    family="control and routing",
    at_most_one_of=("draft", "head"),
)
def auto(
    target: Target,
    *,
    draft: Target | None = None,
    head: ChainHead | None = None,
    index: SuffixAutomatonFile | None = None,
    depth: int = 6,
    lookup_depth: int = 30,
) -> Parts:
    """The draft with the most expected tokens per second, or none, verified by rejection.

    Args:
        draft: draft model with the target's vocabulary
        head: folder with a draft head of any kind that was trained for the target, in place of a draft model
        index: file of `outpace index build --kind suffix-automaton`
        depth: most tokens drafted per step by the model, the head or the target's first layers
        lookup_depth: most tokens drafted per step from a repeated suffix
    """
    if draft is not None and head is not None:
        raise ValueError("draft and head are two drafters of the chain: give one of them")
    drafter: Drafter = NoDraft()
    max_length, levels = None, 1
    if draft is not None:
        max_length, drafter = draft.max_length, PlannedRows(DraftModel(draft))
    elif head is not None:
        depth = longest_chain(head, depth)
        drafter = head_chain(head, target.vocab, depth)
        max_length, levels = longest_text(head), levels_per_forward(head, depth)
    elif (exit_layer := trained_exit(target)) is not None:
        first_layers = without(target, SkipSet.after(exit_layer, num_layers(target)))
        drafter = SelfDraft(DraftModel(first_layers, carried_layer=first_layers.carried_layer))
    corpus = store.open_index(StaticAutomaton, index, target.vocab)
    lookup = SuffixAutomatonLookup(corpus, min_ngram=1, recent=True)  # of at least one token: chains
    model_depth = 0 if isinstance(drafter, NoDraft) else depth
    controller = SourceChoice(
        lookup_depth,
        model_depth,
        target.sizes,
        target.chain_sizes,
        max_length=max_length,
        levels_per_forward=levels,
    )
    return Parts(target, LookupOrDraft(lookup, drafter), Rejection(), controller)
