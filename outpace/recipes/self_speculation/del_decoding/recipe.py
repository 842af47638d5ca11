"""DEL (Entezari Zarch et al. 2025): an early exit drafts, chosen with its length by measured acceptance.

New here: ExitChoice, which applies the LM head to the layers' outputs at the verified positions, counts how
often each exit's token is accepted, and chooses the exit and the length with the most expected tokens
per loaded layer; and ExitDrafter, which has a draft model for each exit.
Reuses: the target without its last layers on its own KV cache, DraftModel, SelfDraft, Rejection. Exact at any
temperature: exit and length follow from committed tokens, and a draft ends after a token, which stays in the
draft, by the exit's confidence before that token was drawn.

The paper's forgetting factor is taken as 0.95, and the last positions of the prompt as the first step,
where exits are compared with what the target would generate; a request also starts with the acceptance
counts of the request that ended last, scaled down. At a temperature above 0 a position counts with the
probability that a token drawn from the exit would be accepted. A token below a threshold ends the draft:
halfway between the mean confidence of the exit where it is accepted and where it is rejected, or none while
tokens below it are worth the layers. To save time, exits that could not be the best even if all their
tokens were accepted are not compared, and after the first steps of the first request the others are compared
once in four steps, for the positions of all four. With a target that was not trained with early exits
(`outpace train layerskip`) it rarely drafts. A compiled target is compiled again for every exit that is used,
which takes seconds: there an exit is used once it has been the best in eight steps, and in half as many as
any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outpace.core.claim import Claim, Drawn
from outpace.core.contracts import Context, Draft, Drafter, Parts, Plan, Step, Target, Want, recipe
from outpace.core.tree import TokenTree
from outpace.drafters.compose.planned_rows import SelfDraft
from outpace.drafters.compose.rows import context_of_rows, joined_drafts, plan_of_rows
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import exit_logits, num_layers, without
from outpace.recipes.self_speculation.del_decoding.exit_choice import ExitChoice
from outpace.verifiers.rejection import Rejection

COMPILED_PATIENCE = 8  # steps
TOGETHER = 4  # steps whose positions the exits are compared at together


@recipe(paper="arXiv:2504.05598", family="self-speculation")
def del_decoding(target: Target, *, depth: int = 18) -> Parts:
    """A chain drafted by as many of the target's first layers as pays, verified by rejection.

    Args:
        depth: most tokens drafted per step
    """
    layers = num_layers(target)

    def draft(exit_layer: int) -> Drafter:
        model = without(target, SkipSet.after(exit_layer, layers))
        return SelfDraft(DraftModel(model))

    patience = COMPILED_PATIENCE if target.sizes else 0  # compiled forwards have sizes
    choice = ExitChoice(exit_logits(target), layers, depth, patience, TOGETHER)
    return Parts(target, ExitDrafter(draft), Rejection(), choice)


class ExitDrafter:
    """Implementation of core.contracts.Drafter: `Plan.drafter` is the number of layers that draft a row. The
    drafter of an exit is made when it is first chosen: a compiled target is compiled for each."""

    want = Want()
    claims: tuple[type[Claim], ...] = (Drawn,)
    learns_across_rows = drafts_across_rows = False

    def __init__(self, make: Callable[[int], Drafter]) -> None:
        """`make`: number of layers -> a drafter on the target's KV cache."""
        self._make = make
        self._drafters: dict[int, Drafter] = {}  # by number of layers

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        assert plan.drafter is not None
        groups: dict[int, list[int]] = {}
        for row, (exit_layer, depth) in enumerate(zip(plan.drafter, plan.depth, strict=True)):
            groups.setdefault(exit_layer if depth else 0, []).append(row)
        drafts = [self._draft(ctx, plan, exit_layer, rows) for exit_layer, rows in groups.items()]
        return joined_drafts(drafts, list(groups.values()))

    def _draft(self, ctx: Context, plan: Plan, exit_layer: int, rows: Sequence[int]) -> Draft:
        if not exit_layer:
            return Draft(TokenTree.roots(ctx.roots[list(rows)]))
        if exit_layer not in self._drafters:
            self._drafters[exit_layer] = self._make(exit_layer)
        drafter = self._drafters[exit_layer]
        if len(rows) == len(ctx.slots):
            return drafter.propose(ctx, plan)
        return drafter.propose(context_of_rows(ctx, rows), plan_of_rows(plan, rows))

    def observe(self, step: Step) -> None:
        """Does nothing: drafters on the target's KV cache have no state of a text."""

    def release(self, slots: Sequence[int]) -> None:
        for drafter in self._drafters.values():
            drafter.release(slots)
