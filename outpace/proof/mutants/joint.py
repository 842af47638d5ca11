"""Mutants of decoding several samples of a prompt: noise shared between rows, draft tokens without
verification.

Under some of them every row has the right distribution and only the joint distribution is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Scores, TargetProbs, Verdict, Verifier
from outpace.core.grower import Grower
from outpace.core.noise import TARGET, Key, Noise
from outpace.core.tree import TokenTree
from outpace.drafters.compose.union import Rekeyed
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.table import TableTarget
from outpace.proof.enumerated_noise import Branch, Name
from outpace.proof.joint import JointNoise
from outpace.proof.mutants.drafters import CorrectDrafter, picked
from outpace.recipes.serving.bass import BatchLength
from outpace.recipes.training_free.multi_sample import Consensus
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection


class OneStream(JointNoise):
    """Mutant: all rows of a group share one seed, so that their texts are equal."""

    def _names(self, key: Key) -> list[tuple[Branch, Name]]:
        return [(branch, name[1:]) for branch, name in super()._names(key)]


class SeedPlusPosition(JointNoise):
    """Mutant: the target's noise is keyed by seed + position, where row r has seed r: row r at position t
    shares its uniform number with row r - 1 at position t + 1, so rows are not independent."""

    def _names(self, key: Key) -> list[tuple[Branch, Name]]:
        named = super()._names(key)
        if key.use != TARGET:
            return named
        sums = [
            self._lengths[row] + depth + self._members[row]
            for row, depth in zip(key.rows, key.depths, strict=True)
        ]
        return [(branch, (TARGET, position)) for (branch, _), position in zip(named, sums, strict=True)]


class DrawnOnce(Match):
    """Mutant: rows with the same target distribution as row 0 (equal texts) get row 0's bonus token, where
    neither has draft tokens."""

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        verdict = super().verify(tree, target_probs, scores, noise)
        p, bonus = target_probs.probs(range(tree.forest.num_rows)), list(verdict.bonus)
        for row in range(1, len(bonus)):
            if not tree.forest.children[row] and not tree.forest.children[0] and bool((p[row] == p[0]).all()):
                bonus[row] = bonus[0]
        return Verdict(verdict.leaf, bonus)


class BonusDrawnTwice(Match):
    """Mutant: a row without accepted tokens draws its bonus token a second time, and keeps the second draw if
    another row has just generated the same token."""

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        verdict, forest = super().verify(tree, target_probs, scores, noise), tree.forest
        paths = [
            [*tree.tokens[forest.path(leaf)[1:]].tolist(), last]
            for leaf, last in zip(verdict.leaf, verdict.bonus, strict=True)
        ]
        bonus = list(verdict.bonus)
        for row, leaf in enumerate(verdict.leaf):
            again = int(noise.choose(target_probs.probs([row]), Key([row], [0], [0], "again")))
            if leaf == row and any(path[0] == again for other, path in enumerate(paths) if other != row):
                bonus[row] = again
        return Verdict(verdict.leaf, bonus)


class AcceptedUnverified(Match):
    """Mutant: the first draft token, which other rows' texts suggest, is accepted without verification."""

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        agreed = [next(iter(tree.forest.children[row]), row) for row in range(tree.forest.num_rows)]
        return Verdict(agreed, target_probs.choose(agreed, noise))


class TargetNoiseReused(CorrectDrafter):
    """Mutant: draws draft tokens with the noise key of row 0's target token, and records them as independent
    draws from q."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        return super().propose(ctx, replace(plan, depth=(0, *plan.depth[1:])))

    def children(self, grower: Grower, at: list[int], q: Tensor, ctx: Context) -> list[int]:
        first = Rekeyed(ctx.noise, lambda key: Key([0] * len(key.rows), key.nodes, key.depths, TARGET))
        return grower.add_drawn(at, q, 1, first, replace=False)


class CutToShortest(Rejection):
    """Mutant: all rows keep as many draft tokens as the row that accepted the fewest; a row that had accepted
    more discards the rest and draws its next token from p. Whether this happens depends on the discarded
    token."""

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        verdict, forest = super().verify(tree, target_probs, scores, noise), tree.forest
        shortest = min(forest.depths[leaf] for leaf in verdict.leaf)
        leaves, bonus = list(verdict.leaf), list(verdict.bonus)
        for row, leaf in enumerate(verdict.leaf):
            if forest.depths[leaf] > shortest:
                leaves[row] = forest.path(leaf)[shortest]
                key = Key([row], [forest.local[leaves[row]]], [shortest], "again")
                bonus[row] = int(noise.choose(target_probs.probs([leaves[row]]), key))
        return Verdict(leaves, bonus)


class CutToBudget(CorrectDrafter):
    """Mutant: a batch may verify two draft tokens; drawn tokens of the smallest draft probability are dropped
    from the ends of the chains. q is not the distribution of the remaining tokens."""

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        claim, forest = tree.claim, tree.forest
        if not isinstance(claim, Drawn):
            return tree
        tokens, kept = tree.tokens.tolist(), set(range(len(tree)))
        while len(kept) > forest.num_rows + 2:
            ends = [
                node for node in kept if node >= forest.num_rows and not kept & set(forest.children[node])
            ]
            kept.remove(min(ends, key=lambda node: float(claim.q[claim.row[node], tokens[node]])))
        return picked(tree, claim, sorted(kept))


@dataclass(frozen=True)
class JointMutant:
    """One mutant of decoding several rows of one prompt."""

    name: str
    build: Callable[[], Parts]
    noise: type[JointNoise] = JointNoise


def joint_variants(target: TableTarget) -> list[JointMutant]:
    """All mutants in which the joint distribution of a prompt's rows is not that of independent rows."""

    def parts(verifier: Verifier) -> Parts:
        return Parts(target, Consensus(min_ngram=1), verifier, Fixed(2))

    return [
        JointMutant("samples: one stream of noise", partial(parts, Match()), OneStream),
        JointMutant("samples: seed plus position", partial(parts, Match()), SeedPlusPosition),
        JointMutant("samples: drawn once for equal texts", partial(parts, DrawnOnce())),
        JointMutant("samples: bonus token drawn twice", partial(parts, BonusDrawnTwice())),
        JointMutant(
            "samples: another's draw claimed",
            lambda: Parts(target, TargetNoiseReused(target), Rejection(), Fixed(1)),
        ),
        JointMutant("samples: agreed tokens taken over", partial(parts, AcceptedUnverified())),
        JointMutant(
            "batch: cut to the shortest row",
            lambda: Parts(
                target,
                DraftModel(TableTarget(target.vocab, order=2, seed=2)),
                CutToShortest(),
                BatchLength(1),
            ),
        ),
        JointMutant(
            "branches: drafts cut to the budget of the batch",
            lambda: Parts(
                target,
                CutToBudget(TableTarget(target.vocab, order=2, seed=2)),
                Rejection(),
                Fixed(2),
            ),
        ),
    ]
