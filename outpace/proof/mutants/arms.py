"""Mutants of methods with several drafters: the choice depends on tokens that are drawn in the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from outpace.controllers.bandit import Bandit, arms_of
from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Target
from outpace.core.grower import DRAFT
from outpace.core.tree import TokenTree
from outpace.drafters.compose.arms import ArmsDrafter
from outpace.drafters.compose.rows import context_of_rows, draft_of_rows, joined_drafts
from outpace.drafters.compose.union import Rekeyed, independent_noise
from outpace.drafters.model.draft_model import DraftModel
from outpace.recipes.control.exp3_spec import EXP3
from outpace.verifiers.rejection import Rejection


class BestSample(ArmsDrafter):
    """Mutant: in each row all arms draft, and the draft whose tokens have the largest draft probabilities is
    kept, with its q. As the kept draft depends on its tokens, q is not their distribution."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        rows = [[row] for row in range(len(ctx.slots))]
        return joined_drafts(
            [self._best(context_of_rows(ctx, row), plan.depth[row[0]]) for row in rows], rows
        )

    def _best(self, ctx: Context, depth: int) -> Draft:
        drafts = [
            draft_of_rows(arm, replace(ctx, noise=independent_noise(ctx.noise, index)), [0], [depth])
            for index, arm in enumerate(self._arms)
        ]
        return max(drafts, key=lambda draft: draft_probability(draft.tree))


def draft_probability(tree: TokenTree) -> float:
    """The product of the draft probabilities of a chain's tokens."""
    if not isinstance(tree.claim, Drawn):
        return 1.0
    pairs = zip(tree.claim.row, tree.tokens.tolist(), strict=True)
    return prod(float(tree.claim.q[row, token]) for row, token in pairs if row >= 0)


class SameNoise(Bandit):
    """Mutant: draws the arm with the random number that also draws the first draft token, so that the arm
    depends on it."""

    def plan(self, ctx: Context) -> Plan:
        noise = Rekeyed(ctx.noise, lambda key: key._replace(use=DRAFT))
        return super().plan(replace(ctx, noise=noise))


def arms(
    target: Target,
    drafts: Sequence[Target],
    drafter: type[ArmsDrafter] = ArmsDrafter,
    controller: type[Bandit] = Bandit,
) -> Parts:
    """Parts that choose among draft models by EXP3."""
    models = [Parts(target, DraftModel(draft), Rejection(), Fixed(2)) for draft in drafts]
    choice = controller(arms_of(len(models), ()), EXP3, reward="tokens")
    return Parts(target, drafter(models), Rejection(), choice)
