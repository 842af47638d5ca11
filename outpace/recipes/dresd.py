"""DReSD (Gritta et al. 2025): draft what followed where the target's hidden state was alike.

New here: Dense. Reuses: DenseIndex, count_trie, Match, Fixed. Exact at any temperature: its tokens carry no claim, and
the target draws one token at each node. The paper's code verifies every candidate by itself and keeps the longest
match, which is not exact.

`index` is a file of `outpace index build --kind hidden-states --tokenizer MODEL`, which reads texts with the model; without one
it decodes plainly. Asked is the last layer's state that chose the newest token: of the `near` states most like it those
that were followed by this token are left, and what came next at the first `keep` of them, up to `depth` tokens, makes
a tree. Use it with an index of the model's own answers to questions of the same kind. States are searched by faiss
where it is installed, in lists if there are many; the paper uses another library for the same, and keeps only states
of answers, where this index holds all states of its texts.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.lookup.hidden_state_search import HiddenStateSearch, opened
from outpace.indexes.store import HiddenStateFile
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2502.15572", family="training-free")
def dresd(
    target: Target, *, index: HiddenStateFile | None = None, near: int = 50, keep: int = 10, depth: int = 9
) -> Parts:
    return Parts(
        target, HiddenStateSearch(opened(index, target.vocab), near=near, keep=keep), Match(), Fixed(depth)
    )
