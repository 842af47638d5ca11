"""What drafters that are made of others have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outpace.core.claim import Claim
from outpace.core.contracts import Drafter, Step, Want


class Learner(Protocol):
    """A drafter, or an index of texts within one."""

    learns_across_rows: bool  # as in core.contracts.Drafter

    def observe(self, step: Step) -> None: ...
    def release(self, slots: Sequence[int]) -> None: ...


class Combined:
    """Base of drafters that are made of others: one wants and claims what any of them does, depends on other
    rows if any of them does, and lets all of them see every step."""

    def __init__(self, *drafters: Drafter, lookups: Sequence[Learner] = ()) -> None:
        self._learners = (*lookups, *drafters)
        self.want = Want()
        for drafter in drafters:
            self.want |= drafter.want
        claims = dict.fromkeys(claim for drafter in drafters for claim in drafter.claims)
        self.claims: tuple[type[Claim], ...] = tuple(claims)
        self.learns_across_rows = any(each.learns_across_rows for each in self._learners)
        self.drafts_across_rows = any(drafter.drafts_across_rows for drafter in drafters)

    def observe(self, step: Step) -> None:
        for each in self._learners:
            each.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        for each in self._learners:
            each.release(slots)
