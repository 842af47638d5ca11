"""REST (He et al. 2024): draft the continuations that a corpus knows of the last tokens, as a tree.

New here: Retrieval. Reuses: SuffixArray, count_trie, Match, Fixed. Exact at any temperature: its tokens carry no claim,
counts only rank them, and the target draws one token at each node. The paper's code draws a token for every path and
position and keeps the longest match, which is not exact.

The longest end of the text, of `longest` down to `shortest` tokens, is looked up in a suffix array; of what followed
the `nodes` most frequent beginnings of up to `depth` tokens make the tree. `index` is a file of
`outpace index build`; besides it the newest `past` tokens of earlier requests are searched, from the next call on.
Use it where answers resemble one another or a corpus: code, forms, reports. Without an index, and before there is a
past, it decodes plainly. Unlike the paper's, the corpus is not divided by task, and of more than 5000 places in a part
of it an even sample is taken instead of the first.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.lookup.past_requests import PastRequests, corpus
from outpace.drafters.lookup.retrieval import Retrieval
from outpace.indexes.store import SuffixArrayFile
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2311.08252", family="training-free")
def rest(
    target: Target,
    *,
    index: SuffixArrayFile | None = None,
    nodes: int = 64,
    depth: int = 10,
    max_ngram: int = 16,
    min_ngram: int = 2,
    past: int = 1 << 20,
) -> Parts:
    found = PastRequests(corpus(index, target.vocab), past)
    return Parts(
        target, Retrieval(found, nodes, max_ngram=max_ngram, min_ngram=min_ngram), Match(), Fixed(depth)
    )
