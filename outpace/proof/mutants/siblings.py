"""Mutants of drafting and verifying siblings: wrong scale rho, siblings re-ordered, merged or selected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.clock import Seconds
from outpace.core.context import Context
from outpace.core.contracts import (
    Draft,
    Drafter,
    Guarantee,
    Plan,
    Scores,
    TargetProbs,
    Verdict,
    Verifier,
    Want,
)
from outpace.core.noise import TARGET, Noise
from outpace.core.tree import TokenTree
from outpace.drafters.compose.union import UnionDrafter
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.experts_apart import ExpertsReader, grow_apart
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import Read
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.jakiro.head import untrained_jakiro
from outpace.models.table import TableTarget
from outpace.proof.mutants.drafters import CorrectDrafter, picked, reclaimed
from outpace.recipes.verification.rsd_s import beam
from outpace.verifiers.kseq import KSequential


class Underscaled(KSequential):
    """Mutant: tests every draw with rho = 1, as if it were the only one: some tokens are accepted too
    often."""

    def scale(self, p: Tensor, q: Tensor, num: Sequence[int]) -> tuple[list[float], list[float]]:
        return [1.0] * len(num), super().scale(p, q, num)[1]


class Overdrawn(KSequential):
    """Mutant: computes the residual with the factor rho, which is right only at the smallest valid rho."""

    def scale(self, p: Tensor, q: Tensor, num: Sequence[int]) -> tuple[list[float], list[float]]:
        rho, _ = super().scale(p, q, num)
        return rho, rho


class NeverFewer(KSequential):
    """Mutant: computes rho for `num` draws at every depth, even after some sequences left the accepted
    prefix."""

    def __init__(self, num: int) -> None:
        super().__init__()
        self._num = num

    def scale(self, p: Tensor, q: Tensor, num: Sequence[int]) -> tuple[list[float], list[float]]:
        return super().scale(p, q, [self._num] * len(num))


class CountedOnce(CorrectDrafter):
    """Mutant: drops draws that repeat a sibling's token, and records the remaining ones as all the draws."""

    def __init__(self, model: TableTarget) -> None:
        super().__init__(model, width=2, replace=True)

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        return _once(tree)


class Merged(UnionDrafter):
    """Mutant: merges equal tokens of two drafters into one child, recorded as a draw of the first drafter
    only."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        draft = super().propose(ctx, plan)
        return replace(draft, tree=_once(draft.tree))


def _once(tree: TokenTree) -> TokenTree:
    claim, tokens, forest = tree.claim, tree.tokens.tolist(), tree.forest
    if not isinstance(claim, Drawn):
        return tree
    first = {(forest.parents[node], tokens[node]): node for node in reversed(range(len(tree)))}
    roots = range(forest.num_rows)
    return picked(tree, claim, [*roots, *sorted(set(first.values()) - set(roots))])


class Resorted:
    """Implementation of core.contracts.Verifier: another rule, with siblings tested in falling order of p."""

    want = Want()
    accepts: tuple[type[Claim], ...] = (Drawn,)
    guarantee = Guarantee.EXACT

    def __init__(self, rule: Verifier) -> None:
        self._rule = rule

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        forest, tokens = tree.forest, tree.tokens.tolist()
        if not isinstance(tree.claim, Drawn):
            return self._rule.verify(tree, target_probs, scores, noise)
        p = target_probs.probs(None)
        drafted = range(forest.num_rows, len(tree))
        order = list(range(forest.num_rows))
        order += sorted(drafted, key=lambda n: (forest.depths[n], -float(p[forest.parents[n], tokens[n]])))
        verdict = self._rule.verify(
            picked(tree, tree.claim, order), _Moved(target_probs, order), scores, noise
        )
        return Verdict([order[leaf] for leaf in verdict.leaf], verdict.bonus)


class _Moved:
    """Implementation of core.contracts.TargetProbs: a tree re-ordered so that node i was node `order[i]`."""

    def __init__(self, target_probs: TargetProbs, order: Sequence[int]) -> None:
        self._distribution, self._order = target_probs, order
        self.seconds: Seconds = 0.0

    def _back(self, nodes: Sequence[int] | None) -> list[int]:
        return list(self._order) if nodes is None else [self._order[node] for node in nodes]

    def choose(self, nodes: Sequence[int] | None, noise: Noise, use: str = TARGET) -> list[int]:
        return self._distribution.choose(self._back(nodes), noise, use)

    def probs(self, nodes: Sequence[int] | None) -> Tensor:
        return self._distribution.probs(self._back(nodes))


def likeliest_kept(model: TableTarget, width: int) -> DraftModel:
    """A drafter that draws `width` + 1 candidates per root without replacement and keeps the `width` most
    probable, not the first `width`."""
    return DraftModel(model, growth=partial(_likeliest, width=width))


def _likeliest(ctx: Context, plan: Plan, read: Read, *, width: int) -> TokenTree:
    tree = beam(ctx, plan, read, widths=(width + 1,))
    claim, tokens, forest = tree.claim, tree.tokens.tolist(), tree.forest
    if not isinstance(claim, Drawn):
        return tree
    kept = list(range(forest.num_rows))
    for root in range(forest.num_rows):
        children = forest.children[root]
        # the first child was drawn from the full distribution, from which no earlier sibling was removed
        kept += sorted(
            sorted(children, key=lambda n: -float(claim.q[claim.row[children[0]], tokens[n]]))[:width]
        )
    return picked(tree, claim, kept)


def one_expert_claimed(target: TableTarget) -> Drafter:
    """Mutant: the experts of Jakiro's head take turns in drawing siblings, but the q recorded for all of them
    is the first expert's."""
    head = HeadModel(untrained_jakiro(target, contrast=False))
    return FeatureDrafter(head, target.vocab, _of_the_first_sibling, sampled=True, reader=ExpertsReader)


def _of_the_first_sibling(ctx: Context, plan: Plan, read: Read) -> TokenTree:
    tree = grow_apart(ctx, plan, read)
    children, parents = tree.forest.children, tree.forest.parents
    return reclaimed(tree, lambda claim, node: claim.q[claim.row[children[parents[node]][0]]])
