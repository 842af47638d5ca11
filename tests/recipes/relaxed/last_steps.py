"""Mistakes in the last step of rules that verify another distribution than the target's: parents beside the
verifier, in which the bonus token of some rows is drawn again."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from outpace.core.claim import DrawnBeside
from outpace.core.contracts import Scores, TargetProbs, Verdict
from outpace.core.noise import Noise
from outpace.core.tree import TokenTree
from outpace.verifiers.rejection import residual
from outpace.verifiers.rows import keys


class LastStep:
    """Draws the bonus tokens again for which `again` has a distribution."""

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        verdict = super().verify(tree, target_probs, scores, noise)
        assert isinstance(tree.claim, DrawnBeside)
        bonus = list(verdict.bonus)
        for row, leaf in enumerate(verdict.leaf):
            p = target_probs.probs([leaf])
            again = self.again(p, tree.claim, leaf, bool(tree.forest.children[leaf]))
            if again is not None:
                bonus[row] = int(noise.choose(again, keys([leaf], tree.forest, "again")))
        return replace(verdict, bonus=bonus)

    def again(self, p: Tensor, claim: DrawnBeside, leaf: int, rejected: bool) -> Tensor | None: ...


class PlainBonus(LastStep):
    """Mistake: the token after a whole accepted draft is the target's."""

    def again(self, p: Tensor, claim: DrawnBeside, leaf: int, rejected: bool) -> Tensor | None:
        return None if rejected else p


class PlainResidual(LastStep):
    """Mistake: after a rejection, what is left of the target's distribution."""

    def again(self, p: Tensor, claim: DrawnBeside, leaf: int, rejected: bool) -> Tensor | None:
        return residual(p, claim.after[leaf][None], p) if rejected else None
