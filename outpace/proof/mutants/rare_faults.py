"""Mutants that are wrong in rare situations only: at temperatures above 1, after long prompts, after hundreds
of steps, from the fourth sibling on, deep below the root. Each is tested with one plan of proofs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Scores, Target, TargetProbs, Verdict
from outpace.core.noise import Noise
from outpace.core.tree import Shape, TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.proof.mutants.late_faults import AcceptsAll
from outpace.verifiers.rejection import Rejection

DEPTH = 14  # of the drafted chains
SIBLINGS = 4


class Sharpened(DraftModel):
    """Mutant: in rows with `wrong(ctx, row)` the claim is q to the power of `power`, normalised. With the
    temperature as the power that is the distribution at temperature 1."""

    def __init__(
        self,
        model: Target,
        wrong: Callable[[Context, int], bool],
        power: Callable[[Context, int], float],
    ) -> None:
        super().__init__(model)
        self._wrong, self._power = wrong, power

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        draft = super().propose(ctx, plan)
        claim, rows = draft.tree.claim, draft.tree.forest.rows
        if not isinstance(claim, Drawn):
            return draft
        q = claim.q.clone()
        for node, row_of_q in claim.all_draws():
            if self._wrong(ctx, rows[node]):
                sharp = q[row_of_q] ** self._power(ctx, rows[node])
                q[row_of_q] = sharp / sharp.sum()
        return replace(draft, tree=replace(draft.tree, claim=replace(claim, q=q)))


class AfterSteps(AcceptsAll):
    """Mutant: accepts all of a chain once it has verified more than `steps` steps."""

    def __init__(self, steps: int) -> None:
        super().__init__(self._late)  # a method, so that a copy of the verifier uses its own state
        self._steps, self._limit = 0, steps

    def _late(self, depth: int, target_probs: TargetProbs) -> bool:
        return self._steps > self._limit

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        self._steps += 1
        return super().verify(tree, target_probs, scores, noise)


class FourthSibling(Rejection):
    """Mutant: the fourth of the children of a root is accepted where the first three were rejected."""

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        verdict, children = super().verify(tree, target_probs, scores, noise), tree.forest.children
        leaves, bonus = list(verdict.leaf), list(verdict.bonus)
        for row, leaf in enumerate(leaves):
            if leaf == row and len(children[row]) >= SIBLINGS:
                leaves[row] = children[row][SIBLINGS - 1]
                bonus[row] = target_probs.choose([leaves[row]], noise)[0]
        return Verdict(leaves, bonus)


def rare_faults() -> Iterator[tuple[str, str, Callable[[Target, Sequence[Target]], Parts]]]:
    """(name, name of the plan, function of target and draft models that returns the parts) of each mutant."""

    def sharpened(
        wrong: Callable[[Context, int], bool], power: Callable[[Context, int], float]
    ) -> Callable[[Target, Sequence[Target]], Parts]:
        return lambda target, drafts: Parts(
            target, Sharpened(drafts[0], wrong, power), Rejection(), Fixed(DEPTH)
        )

    def accepting(make: Callable[[], Rejection]) -> Callable[[Target, Sequence[Target]], Parts]:
        return lambda target, drafts: Parts(target, DraftModel(drafts[0]), make(), Fixed(DEPTH))

    yield (
        "q of temperature 1 claimed at higher temperatures",
        "long",
        sharpened(
            lambda ctx, row: ctx.sampling[row].temperature > 1,
            lambda ctx, row: ctx.sampling[row].temperature,
        ),
    )
    yield (
        "q claimed too sharp after prompts of more than 32 tokens",
        "long",
        sharpened(lambda ctx, row: ctx.prompt_lengths[row] > 32, lambda ctx, row: 2.0),
    )
    yield "everything accepted after 100 steps", "long", accepting(lambda: AfterSteps(100))
    yield (
        "everything accepted from depth 12 on",
        "long",
        accepting(lambda: AcceptsAll(lambda depth, probs: depth + 1 >= 12)),
    )
    yield (
        "fourth sibling accepted untested",
        "broad",
        lambda target, drafts: Parts(
            target, DraftModel(drafts[0]), FourthSibling(), Fixed(Shape.branching((SIBLINGS,)))
        ),
    )
