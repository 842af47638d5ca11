"""Exact verification of a distribution that is made from the target's and the drafter's.

Letters: M selected nodes of N, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from outpace.core.claim import Claim, DrawnBeside
from outpace.core.clock import Seconds
from outpace.core.contracts import Guarantee, Scores, TargetProbs, Verdict, Verifier
from outpace.core.device_copies import indices
from outpace.core.noise import TARGET, Noise
from outpace.core.tree import TokenTree
from outpace.verifiers.drawn_beside import drawn_beside
from outpace.verifiers.rows import keys

# p and q (M, V) after sampling parameters, logits of target and drafter (M, V) before them -> (M, V)
Mix = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Transformed:
    """Implementation of core.contracts.Verifier: an exact rule that is given another distribution than the
    target's at every node, the bonus tokens' included, so that the output has this distribution. ValueError
    for a draft without `DrawnBeside`."""

    accepts: tuple[type[Claim], ...] = (DrawnBeside,)
    guarantee = Guarantee.LOSSY

    def __init__(self, mix: Mix, rule: Verifier) -> None:
        self.want = rule.want
        self._mix, self._rule = mix, rule

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        mixed = MixedProbs(self._mix, target_probs, tree, drawn_beside(tree), scores)
        return self._rule.verify(tree, mixed, scores, noise)


class MixedProbs:
    """Implementation of core.contracts.TargetProbs: the distributions that `mix` makes at the nodes."""

    def __init__(
        self, mix: Mix, target_probs: TargetProbs, tree: TokenTree, claim: DrawnBeside, scores: Scores
    ) -> None:
        assert scores.logits is not None and not scores.first
        self._mix, self._target_probs, self._tree, self._claim = mix, target_probs, tree, claim
        self._logits = scores.logits
        self.seconds: Seconds = 0.0  # the session reads those of the target's own

    def choose(self, nodes: Sequence[int] | None, noise: Noise, use: str = TARGET) -> list[int]:
        selected = range(len(self._tree)) if nodes is None else nodes
        return noise.choose(self.probs(nodes), keys(selected, self._tree.forest, use)).tolist()

    def probs(self, nodes: Sequence[int] | None) -> Tensor:
        p = self._target_probs.probs(nodes)
        rest = [self._claim.after, self._logits, self._claim.logits]
        if nodes is not None:
            rest = [each[indices(nodes, each.device)] for each in rest]
        after, target, draft = (each.to(p.device) for each in rest)
        return self._mix(p, after, target, draft)
