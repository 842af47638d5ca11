"""Retrieval (He et al. 2024): what most often followed the last tokens in a corpus and in earlier requests."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Step, Want
from outpace.drafters.branches import hung
from outpace.drafters.past import Past
from outpace.indexes.branches import NOTHING


class Retrieval:
    """core.contracts.Drafter: the `nodes` most frequent beginnings of what followed the longest known end of a text."""

    want = Want()
    claims: tuple[type[Claim], ...] = ()

    def __init__(self, past: Past, nodes: int = 64, *, longest: int = 16, shortest: int = 2) -> None:
        if nodes < 1:
            raise ValueError(f"a tree of {nodes} nodes: ask for at least one")
        if not 1 <= shortest <= longest:
            raise ValueError(f"matches of {shortest} to {longest} tokens: give shortest >= 1 and longest >= shortest")
        self._past, self._nodes, self._longest, self._shortest = past, nodes, longest, shortest

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        self._past.attend(ctx)
        found = [
            self._past.branches(tokens[-self._longest :].tolist(), self._nodes, depth, self._longest, self._shortest)
            if depth > 0
            else NOTHING
            for tokens, depth in zip(ctx.tokens, plan.depth, strict=True)
        ]
        return Draft(hung(ctx.roots, found))

    def observe(self, step: Step) -> None:
        self._past.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        self._past.release(slots)
