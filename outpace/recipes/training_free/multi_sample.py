"""Multi-sample inference (Li et al. 2025): samples of one prompt draft from the text of the other samples.

New here: Consensus. Reuses: Match, Fixed. Exact at any temperature, and the samples stay independent of one
another: a draft is made of tokens that other samples generated before the step, it carries no claim, and the
target draws every token with the sample's own noise. The proof enumerates the joint distribution of two and
three samples.

Rows of one batch with equal prompts are samples of one prompt, as `n` requests them. The last tokens of a row
are looked up in the other samples, and the longest matches are merged into a graph: equal tokens at an equal
distance from the match are one node, and the weight of an edge is the match length times the target's
probability of the token, summed over the samples that contain it. The draft follows the heaviest edges. The
text of a sample that has ended is still searched; when the last of them ends, all texts of the prompt are
dropped. A single sample, or the one that is ahead of the others, decodes plainly.

Use it for voting among answers, best-of-n and other uses of many samples, the more the better. Set `batch` to
at least `n`: other batches are not searched. Samples that generate identical text in step help each other
little, because none is ahead. `min_ngram` 1 drafts and accepts more tokens, at a lower acceptance rate.

The authors published no code. Here the weight of a match is its length, probabilities are the target's before
temperature, matches of all lengths are merged, and prompts are not searched.
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
    min_share: float = 0.3,
    tree: bool = False,
    nodes: int = 16,
    max_matches: int = 32,
) -> Parts:
    """Drafts retrieved from the other samples of the same prompt, verified by matching.

    Args:
        depth: maximum number of tokens drafted per step
        max_ngram: maximum length of a match of the last tokens
        min_ngram: minimum length of a match
        min_share: minimum share of a draft token in the weight of all edges out of its parent
        tree: draft a tree in place of a chain
        nodes: maximum number of draft tokens per step, with `tree`
        max_matches: maximum number of matches that are merged, the longest first
    """
    drafter = Consensus(
        max_ngram, min_ngram, min_share=min_share, tree=tree, nodes=nodes, max_matches=max_matches
    )
    return Parts(target, drafter, Match(), Fixed(depth))
