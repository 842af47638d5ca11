"""Exact verification of contrasted logits."""

from __future__ import annotations

from outpace.core.claim import Claim, DrawnBeside
from outpace.core.contracts import Guarantee, Scores, TargetProbs, Verdict, Verifier
from outpace.core.noise import Noise
from outpace.core.tree import TokenTree
from outpace.recipes.relaxed.scd.contrast import Contrast
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.drawn_beside import drawn_beside


class Contrasted:
    """Implementation of core.contracts.Verifier: an exact rule that is given the contrasted distribution at
    every node, the bonus tokens' included. ValueError for a draft without `DrawnBeside`."""

    accepts: tuple[type[Claim], ...] = (DrawnBeside,)
    guarantee = Guarantee.LOSSY

    def __init__(self, contrast: Contrast, rule: Verifier) -> None:
        self.want = rule.want
        self._contrast, self._rule = contrast, rule

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        claim = drawn_beside(tree)
        assert scores.logits is not None and isinstance(target_probs, LazyTargetProbs)
        other = claim.logits.to(scores.logits.device)
        return self._rule.verify(tree, target_probs.mixed_with(other, self._contrast), scores, noise)
