"""Judged verification (Bachmann et al. 2025): a draft token is accepted if the target would have chosen it,
or if a judge finds it right.

Letters: N nodes, D hidden size.
"""

from __future__ import annotations

from torch import Tensor

from outpace.core.claim import Claim
from outpace.core.contracts import NOTHING, Guarantee, Scores, TargetProbs, Verdict, Want
from outpace.core.noise import Noise
from outpace.core.tree import TokenTree
from outpace.models.predictors.judge.predictor import JudgePredictor

LM_HEAD_INPUT = -1  # in Want.hidden


class Judged:
    """Implementation of core.contracts.Verifier for chains: a token passes if it equals the token drawn from
    the target, or if the judge finds it right with a probability of more than `threshold` by the target's
    state after reading it. The tokens before the first that does not pass are accepted, and the bonus token
    is the one drawn from the target after them; it is not judged."""

    accepts: tuple[type[Claim], ...] = (Claim,)  # all kinds: the rule does not use claims

    def __init__(self, judge: JudgePredictor, threshold: float) -> None:
        """ValueError unless 0 <= `threshold` <= 1. With 1 nothing passes by the judge, and the output has
        the target's distribution."""
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}; give a probability from 0 to 1")
        self._judge, self._threshold = judge, threshold
        is_exact = threshold == 1
        self.guarantee = Guarantee.EXACT if is_exact else Guarantee.LOSSY
        self.want = NOTHING if is_exact else Want(hidden=frozenset({LM_HEAD_INPUT}), at_prompt=False)

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        forest, tokens = tree.forest, tree.token_list()
        chosen = target_probs.choose(None, noise)
        right = self.right(tree, scores)
        leaf = list[int]()
        for node in range(forest.num_rows):
            while (below := forest.children[node]) and (tokens[below[0]] == chosen[node] or right[below[0]]):
                node = below[0]
            leaf.append(node)
        return Verdict(leaf, [chosen[node] for node in leaf])

    def right(self, tree: TokenTree, scores: Scores) -> list[bool]:  # (N,)
        """Whether the judge finds the token of each node right."""
        if self._threshold == 1:
            return [False] * len(tree)
        return self.passing(scores.hidden[LM_HEAD_INPUT])

    def passing(self, hidden: Tensor) -> list[bool]:  # (N, D) -> (N,)
        """Whether the judge finds tokens right, by the states after them."""
        return [prob > self._threshold for prob in self._judge.right(hidden)]
