"""Multilingual drafters (Yi et al. 2024): a draft model per language, chosen once by each request's prompt.

New here: PromptProfile, which knows the tokens of one language's prompts, and PromptRouter, which chooses the
draft model whose prompts are most like the request's. Reuses: ArmsDrafter, DraftModel, Rejection. Exact at
any temperature: the draft model follows from the prompt alone, so that the q that it records is the
distribution of its tokens.

The paper trains small models on answers of the target to prompts in one language each and finds that the
language of the prompt matters more than that of the answer. `outpace train multilingual-drafter` trains one
such specialist and writes the numbers of tokens and pairs of tokens of its prompts beside it. The paper does
not say how a prompt's language is detected: here it is that of the specialist under whose numbers the tokens
of the prompt are most likely, if they are well above chance. Other prompts, such as those in a language
unlike that of any specialist, get the generic `draft`. Specialists may as well be for domains.

Only the chosen draft model reads the request, which keeps it to its end. Texts that change language are
better served by `hedge-spec`, whose draft models all read everything.

Use it where prompts come in several languages, or are of several kinds, and a single small draft model cannot
learn all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Step, Target, Want, recipe
from outpace.drafters.compose.arms import ArmsDrafter
from outpace.drafters.model.draft_model import DraftModel
from outpace.recipes.control.multilingual_drafter.prompt_profile import PromptProfile
from outpace.recipes.control.multilingual_drafter.specialists import Specialists
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2406.16758", family="control and routing")
def multilingual_drafter(
    target: Target, *, draft: Target, specialists: Specialists | None = None, depth: int = 5
) -> Parts:
    """A chain of the draft model for the prompt's language, or of the generic one.

    Args:
        draft: generic draft model, for prompts that no specialist suits, with the target's vocabulary
        specialists: folders of draft models for one language each; none: the generic one drafts all
        depth: tokens drafted per step
    """
    special = () if specialists is None else specialists.each
    models = [draft, *(each.model for each in special)]
    arms = [Parts(target, DraftModel(model), Rejection(), Fixed(depth)) for model in models]
    router = PromptRouter([each.profile for each in special], depth)
    return Parts(target, ArmsDrafter(arms), Rejection(), router)


class PromptRouter:
    """Implementation of core.contracts.Controller: chains of one length, drafted in each request by the
    drafter whose prompts are most like its own.

    Drafter n + 1 is that of `profiles[n]`. Drafter 0 drafts for prompts that are like none of them. A request
    keeps its drafter to its end, whatever it generates: another one would have to read its whole text.
    """

    want = Want()
    plans_across_rows = False

    def __init__(self, profiles: Sequence[PromptProfile], depth: int) -> None:
        """ValueError for a depth below 1."""
        if depth < 1:
            raise ValueError(f"depth is {depth}; use 1 or more")
        self._profiles, self._depth = tuple(profiles), depth
        self._chosen: dict[int, int] = {}  # slot -> drafter

    def plan(self, ctx: Context) -> Plan:
        drafter = [0] * len(ctx.slots)
        for row, slot in enumerate(ctx.slots):
            if slot not in self._chosen:
                if not ctx.max_draft_depth[row]:
                    continue  # no draft; the prompt may not be known to its end
                prompt = ctx.tokens[row][: ctx.prompt_lengths[row]]
                self._chosen[slot] = self.drafter_for(prompt.tolist())
            drafter[row] = self._chosen[slot]
        return Plan((self._depth,) * len(ctx.slots), drafter=tuple(drafter))

    def drafter_for(self, prompt: Sequence[int]) -> int:
        """The drafter for a prompt: that of the profile under which it is most likely, of those under which
        it has at least the least likelihood; 0 if there is none."""
        best = 0, 0.0
        for drafter, profile in enumerate(self._profiles, 1):
            likelihood = profile.likelihood(prompt)
            if likelihood >= profile.least and (not best[0] or likelihood > best[1]):
                best = drafter, likelihood
        return best[0]

    def observe(self, step: Step) -> None:
        """Does nothing: the choice follows from the prompt."""

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._chosen.pop(slot, None)
