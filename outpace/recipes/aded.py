"""ADED (Liu et al. 2025): search a tree in a table of trigrams that follows the text as it is written.

New here: Trigrams. Reuses: TrigramTable, trigram_search, Match, Fixed. Exact at any temperature: its tokens carry no
claim, the search draws from the text's length alone, and the target draws one token at each node. Code that draws for
every path and keeps the longest match is not exact.

Weights are how often a token followed two others, in `index` (a file of `outpace index build --kind trigrams`) if there
is one. Before each draft every trigram in the last 16 tokens gains `adapt`, up to 3. A Monte Carlo tree search of so
many `iterations` and `depth` levels then walks from the last two tokens; `explore` widens it. The `paths` nodes visited
most, each with its likeliest next token, make a tree of at most `nodes`.

Weights are added to the shared table when a request has ended, so that requests decoded together do not depend on one
another: 4096 pairs of each, and the newest 65536 of all, besides the index. As in the authors' code the same 16 tokens
are counted at every step while they are the last ones. Use it where a text keeps to its own phrases; its table grows
with the pairs of tokens that a corpus has, not with its length, and without numba (extra `retrieval`) a search takes
milliseconds.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.lookup.trigrams import Trigrams, table
from outpace.indexes.store import TrigramFile
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2407.12021", family="training-free")
def aded(
    target: Target,
    *,
    index: TrigramFile | None = None,
    iterations: int = 150,
    paths: int = 24,
    nodes: int = 64,
    depth: int = 4,
    explore: float = 32.0,
    adapt: float = 0.04,
) -> Parts:
    drafter = Trigrams(
        table(index, target.vocab),
        iterations=iterations,
        paths=paths,
        nodes=nodes,
        depth=depth,
        explore=explore,
        adapt=adapt,
    )
    return Parts(target, drafter, Match(), Fixed(depth + 1))
