"""DReSD (Gritta et al. 2025): dense retrieval, draft the continuations of the most similar hidden states.

New here: HiddenStateSearch. Reuses: HiddenStateIndex, count_trie, Match, Fixed. Exact at any temperature: the
draft tokens carry no claim and the target draws one token at each node. The paper's code verifies every
candidate separately and keeps the longest match, which is not exact.

The query is the hidden state, at the input of the LM head, that produced the newest token. Of the nearest
states in the index, those whose next token equals the newest token are kept, and their continuations are
merged into a tree.

Use it with an index of the model's own answers to similar questions. The search uses faiss where it is
installed, with inverted lists for large indexes. The paper uses another library, and indexes answers only,
where this index holds every state of its texts. The states of texts are computed as in decoding, with one
growing KV cache, in windows of 4096 tokens or the model's length that overlap by half.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.lookup.hidden_state_search import HiddenStateSearch, opened
from outpace.indexes.store import HiddenStateFile
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2502.15572", family="training-free")
def dresd(
    target: Target,
    *,
    index: HiddenStateFile | None = None,
    neighbors: int = 50,
    max_paths: int = 10,
    depth: int = 9,
) -> Parts:
    """A tree of the continuations of the nearest hidden states in an index, verified by matching.

    Args:
        index: file of `outpace index build --kind hidden-states --tokenizer MODEL`; needed to draft
        neighbors: nearest states retrieved per step
        max_paths: number of them, the most similar, whose continuations form the draft tree
        depth: maximum number of tokens of each continuation
    """
    drafter = HiddenStateSearch(opened(index, target.vocab), neighbors=neighbors, max_paths=max_paths)
    return Parts(target, drafter, Match(), Fixed(depth))
