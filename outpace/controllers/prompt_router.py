"""Chooses a drafter for each request by its prompt (Yi et al. 2024, multilingual drafters)."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.context import Context
from outpace.core.contracts import Plan, Step, Want
from outpace.indexes.prompt_profile import PromptProfile


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
