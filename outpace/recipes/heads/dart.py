"""DART (Liu et al. 2026): a head drafts all levels in one forward, and n-grams join their tokens to a tree.

New here: nothing. Reuses: FeatureDrafter, MaskReader, best_scored, NGramScores, Match, Fixed. Exact at any
temperature: the tree's tokens are chosen by their scores and carry no claim.

The head gives one distribution p for each level, which does not know the tokens drafted before. The
probability of a token after the last tokens of text and path in an `index` tells which tokens follow one
another: that of the longest context of at most `max_ngram` - 1 tokens after which the token occurs. Level l,
counted from 0, adds (l + 1)^-0.7 (0.9^l log p + 0.5 log p_ngram) to a path's score, with p over the `width`
most probable tokens and no probability below 1e-10. The `num_nodes` best paths are the tree. Without an index
the n-grams do not count.

The paper searches level by level and extends 20 paths of each; the search here finds the best of all. The
paper counts n-grams of three tokens in large corpora; texts that the target wrote suit it best. Not published
are the number of masks (7 unless the head has others) and the training: here in masks behind all tokens, with
0.8 as the weight of each further one.
"""

from functools import partial

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.best_first import best_scored
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.mask_reader import MaskReader
from outpace.drafters.model.ngram_scores import NGramScores
from outpace.indexes import store
from outpace.indexes.automata.static import StaticAutomaton
from outpace.indexes.store import SuffixAutomatonFile
from outpace.models.heads.dart.kind import DartModel
from outpace.verifiers.match import Match

LEVEL_POWER, HEAD_DECAY = -0.7, 0.9


@recipe(paper="arXiv:2601.19278", family="trained heads")
def dart(
    target: Target,
    *,
    head: DartModel,
    index: SuffixAutomatonFile | None = None,
    depth: int = 8,
    width: int = 25,
    num_nodes: int = 60,
    max_ngram: int = 3,
    ngram_weight: float = 0.5,
) -> Parts:
    """The best paths through the levels of one forward, by a head's probabilities and n-grams.

    Args:
        head: folder with a head of DART that was trained for the target
        index: file of `outpace index build --kind suffix-automaton`, in which n-grams are counted
        depth: longest path that is drafted, at most one token more than the head has masks
        width: most probable tokens of the head that are tried after each node
        num_nodes: draft tokens of a step, those of the best paths
        max_ngram: tokens of the longest n-gram that is counted
        ngram_weight: of the n-grams beside the head; 0: they do not count
    """
    if width < 1 or max_ngram < 1 or ngram_weight < 0:
        raise ValueError(
            f"width is {width}, max_ngram {max_ngram} and ngram_weight {ngram_weight}: give 1 or more tokens "
            "and a weight that is not negative"
        )
    levels = 1 + (head.head.num_masks or 0)
    counts = store.open_index(StaticAutomaton, index, target.vocab)
    growth = partial(
        best_scored,
        num_nodes=num_nodes,
        width=width,
        context=max_ngram - 1,
        scored=NGramScores(counts, ngram_weight, model_decay=HEAD_DECAY, level_power=LEVEL_POWER),
    )
    reader = partial(MaskReader, levels=levels)
    drafter = FeatureDrafter(head, target.vocab, growth, sampled=False, reader=reader)
    return Parts(target, drafter, Match(), Fixed(min(depth, levels)))
