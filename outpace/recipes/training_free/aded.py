"""ADED (Liu et al. 2025): draft the paths that a tree search visits most often in an adaptive trigram table.

New here: Trigrams. Reuses: TrigramTable, trigram_search, Match, Fixed. Exact at any temperature: the drafted
tokens carry no claim, the search is seeded by the length of the text, and the target draws one token at each
node. Code that draws one token per path and keeps the longest match is not exact.

The table holds a weight for each trigram: its conditional frequency in the index, if there is one, plus
`weight_step` for each time it was among the last 16 tokens of a text at the start of a draft, at most 3. A
Monte Carlo tree search walks from the last two tokens; the most visited paths, each extended by its most
probable next token, form the draft tree. A request keeps its own additions, at most 4096 token pairs. When it
ends they are added to the shared table, which holds the newest 65536 pairs besides the index. As in the
authors' code, the last 16 tokens count again at every step.

Use it where a text repeats its own phrases. The table grows with the number of distinct token pairs in a
corpus, not with its length. Without numba (extra `retrieval`) a search takes milliseconds.
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
    max_paths: int = 24,
    nodes: int = 64,
    depth: int = 4,
    exploration: float = 32.0,
    weight_step: float = 0.04,
) -> Parts:
    """A tree found by Monte Carlo tree search in a trigram table, verified by matching.

    Args:
        index: file of `outpace index build --kind trigrams`; without one the table starts empty
        iterations: tree search iterations per draft
        max_paths: number of paths, those visited most often, that form the draft tree
        nodes: maximum number of draft tokens per step
        depth: levels of the tree search; paths are extended by one more token
        exploration: weight of unvisited tokens in the search; larger values give wider trees
        weight_step: weight added at every step to the trigrams of the last 16 tokens; 0 learns nothing
    """
    drafter = Trigrams(
        table(index, target.vocab),
        iterations=iterations,
        max_paths=max_paths,
        nodes=nodes,
        depth=depth,
        exploration=exploration,
        weight_step=weight_step,
    )
    return Parts(target, drafter, Match(), Fixed(depth + 1))
