"""Mutants of predicted outputs: predicted tokens replace drawn ones, so that the recorded q is not the
distribution of the draft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Plan, Step, Want
from outpace.core.tree import TokenTree


class WithPrediction:
    """Base class: a drafter of chains whose draft is changed by a prediction, the same in every step."""

    claims: tuple[type[Claim], ...] = (Drawn,)
    learns_across_rows = drafts_across_rows = False

    def __init__(self, drafter: Drafter, prediction: Sequence[int]) -> None:
        self._drafter, self._prediction, self.want = drafter, prediction, Want()

    def finish(self, tree: TokenTree, prediction: Sequence[int]) -> TokenTree:
        """The draft tree changed by the mutant."""
        raise NotImplementedError

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        draft = self._drafter.propose(ctx, plan)
        return replace(draft, tree=self.finish(draft.tree, self._prediction))

    def observe(self, step: Step) -> None:
        self._drafter.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        self._drafter.release(slots)


class Overwritten(WithPrediction):
    """Mutant: drawn tokens are replaced by the predicted ones, but are still recorded as drawn from q."""

    def finish(self, tree: TokenTree, prediction: Sequence[int]) -> TokenTree:
        tokens, depths = tree.tokens.clone(), tree.forest.depths
        for node in range(tree.forest.num_rows, len(tree)):
            tokens[node] = prediction[depths[node] - 1]
        return replace(tree, tokens=tokens)


class PredictionSubstituted(WithPrediction):
    """Mutant: a drawn token that differs from the predicted one is replaced by it and recorded as not drawn;
    one that is equal is still recorded as drawn from q."""

    def finish(self, tree: TokenTree, prediction: Sequence[int]) -> TokenTree:
        claim = tree.claim
        if not isinstance(claim, Drawn):
            return tree
        tokens, depths, row = tree.tokens.clone(), tree.forest.depths, list(claim.row)
        for node in range(tree.forest.num_rows, len(tree)):
            expected = prediction[depths[node] - 1]
            if tokens[node] != expected:
                tokens[node], row[node] = expected, -1
        return replace(tree, tokens=tokens, claim=replace(claim, row=tuple(row)))
