"""Multi-sample inference (Li et al. 2025): samples of one prompt draft what the others of them went on with.

New here: Consensus. Reuses: Match, Fixed. Exact at any temperature, and the samples stay independent of one another: a
draft is what others had said before the step, its tokens carry no claim, and the target draws every token by noise of
that sample's own. The proof enumerates what two and three samples say together.

Rows of one batch whose prompts are equal are samples of one prompt, as `n` asks for. The last tokens of a row, up to
`longest` and at least `shortest` of them, are looked up in what the others have said, and the `matches` longest matches
are merged: equal tokens at an equal distance are one node of a graph, in which an edge weighs the length of the match
times the target's probability of the token, summed over those that took it. From the last token the draft follows the
heaviest edge, up to `depth` tokens, while it has a share of at least `threshold` of all that leave its node. With
`tree` it is the `nodes` likeliest nodes over all such edges. A sample that has ended goes on helping the others; with
the last of them everything is forgotten. One sample alone, and one that is the first to say something, decodes plainly.

Use it for voting among answers, best-of-n and other uses of many samples, the more of them the better: give a `batch`
of at least `n`, since what another batch says is not asked. Samples that say the same word for word help each other
little, because none is ahead. With `shortest` at 1 more is drafted and accepted, and a smaller part of it.

There is no code of the authors to follow in details: here the weight of a match is its length, probabilities are the
target's before temperature, matches of all lengths are merged, and prompts themselves are not searched.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.lookup.consensus import Consensus
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2503.05330", family="training-free")
def multi_sample(
    target: Target,
    *,
    depth: int = 10,
    max_ngram: int = 4,
    min_ngram: int = 2,
    threshold: float = 0.3,
    tree: bool = False,
    nodes: int = 16,
    matches: int = 32,
) -> Parts:
    drafter = Consensus(max_ngram, min_ngram, threshold=threshold, tree=tree, nodes=nodes, matches=matches)
    return Parts(target, drafter, Match(), Fixed(depth))
