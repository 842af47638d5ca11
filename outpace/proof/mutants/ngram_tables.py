"""Mutants of drafting from a table of n-gram probabilities: the recorded q of top-k distributions is
wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan
from outpace.models.table import TableTarget
from outpace.recipes.training_free.stand.recipe import NGramProbabilityDrafter


def informed(drafter: NGramProbabilityDrafter, model: TableTarget) -> NGramProbabilityDrafter:
    """The drafter, its table filled with the model's most probable tokens after every pair of tokens."""
    for first in range(model.vocab):
        for second in range(model.vocab):
            best = model.logits[model.state([first, second])].softmax(-1).topk(drafter.table.width)
            drafter.table.update([first, second], [best.indices.tolist()], [best.values.tolist()])
    return drafter


class ClaimedWithReplacement(NGramProbabilityDrafter):
    """Mutant: siblings drawn without replacement, recorded as drawn with replacement."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        return _claimed(
            super().propose(ctx, plan), lambda claim: replace(claim, replace=(True,) * len(claim.replace))
        )


class BeforeTemperature(NGramProbabilityDrafter):
    """Mutant: tokens drawn after temperature, with the table's probabilities before temperature recorded as
    q."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        temperature = ctx.sampling[0].temperature
        return _claimed(
            super().propose(ctx, plan),
            lambda claim: replace(claim, q=(q := claim.q**temperature) / q.sum(-1, keepdim=True)),
        )


def _claimed(draft: Draft, change: Callable[[Drawn], Drawn]) -> Draft:
    claim = draft.tree.claim
    return (
        replace(draft, tree=replace(draft.tree, claim=change(claim))) if isinstance(claim, Drawn) else draft
    )
