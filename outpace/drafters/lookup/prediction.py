"""Drafting what the caller expects the answer to be, such as the file that is to be edited.

A pointer follows the answer through the expected tokens. Where the answer departs from them, its last n-gram
shows where the two meet again, as in a comparison of files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Plan, Step
from outpace.drafters.lookup.text_lookup import chain, first_found
from outpace.indexes.candidates import CandidateTree

LEAST, MOST = (
    8,
    63,
)  # tokens drafted at once; with its root the longest is one of the sizes that models are made for
LONGEST, SHORTEST = 3, 1  # n-grams by which a place is found again


class PredictionDrafter:
    """core.contracts.Drafter: each row's prediction where it has something to say, `otherwise` where it has
    not.

    A draft is as long as the answer has agreed with the prediction before it, however deep the plan is, which
    was made for the other drafter. Which of the two a row gets depends on committed tokens alone, so that the
    other one may claim what it draws.
    """

    def __init__(
        self, otherwise: Drafter, predictions: Sequence[Sequence[int]]
    ) -> None:  # one a slot; may be empty
        self._otherwise = otherwise
        self._places = [Place(tokens) for tokens in predictions]
        self.want = otherwise.want
        self.claims: tuple[type[Claim], ...] = otherwise.claims
        self.learns_across_rows = otherwise.learns_across_rows
        self.drafts_across_rows = otherwise.drafts_across_rows
        self.drafted: dict[int, list[int]] = {}  # slot -> tokens of its prediction in the last draft

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        found: list[CandidateTree] = []
        for row, slot in enumerate(ctx.slots):
            place = self._places[slot]
            place.read(ctx.tokens[row][ctx.prompt_lengths[row] + place.num_read :].tolist())
            found.append(chain(place.following(ctx.room[row]), place.agreed, ctx.sampling[row].stop))
        self.drafted = {slot: branches.tokens for slot, branches in zip(ctx.slots, found, strict=True)}
        return first_found(ctx, found, self._otherwise, plan)

    def observe(self, step: Step) -> None:
        self._otherwise.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        self._otherwise.release(slots)


class Place:
    """Where an answer stands in what was expected."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)
        self._at: int | None = 0  # the token that comes next; None where the answer has departed
        self._near = 0  # the last place known to be right
        self._last: list[int] = []  # the answer's last tokens
        self._ends: dict[tuple[int, ...], list[int]] = {}  # n-gram -> where its occurrences end, in order
        self.num_read = 0  # tokens of the answer
        self.agreed = 0  # how many of them, up to the last, the prediction has in a row

    def read(self, new: Sequence[int]) -> None:
        """The answer goes on with these tokens."""
        self.num_read += len(new)
        if not new or not self._tokens:
            return
        for token in new:
            if self._at is not None and self._tokens[self._at : self._at + 1] == [token]:
                self._at += 1
                self._near = self._at
                self.agreed += 1
            else:
                self._at, self.agreed = None, 0
        self._last = [*self._last, *new][-LONGEST:]
        if self._at is None:
            self._find()

    def following(self, room: int) -> list[int]:
        """The tokens expected next, at most so many."""
        if self._at is None:
            return []
        return self._tokens[self._at : self._at + min(room, MOST, max(LEAST, self.agreed))]

    def _find(self) -> None:
        """Meet again where the longest n-gram ends next, or else where it ended last before."""
        self._ends = self._ends or _ends(self._tokens)
        for size in range(len(self._last), SHORTEST - 1, -1):
            if ends := self._ends.get(tuple(self._last[-size:])):
                self._at = ends[min(bisect_left(ends, self._near), len(ends) - 1)]
                self.agreed = size
                return


def _ends(tokens: Sequence[int]) -> dict[tuple[int, ...], list[int]]:
    """Where the n-grams of these tokens end: the index of the token after each."""
    ends: dict[tuple[int, ...], list[int]] = {}
    for end in range(1, len(tokens) + 1):
        for size in range(SHORTEST, min(LONGEST, end) + 1):
            ends.setdefault(tuple(tokens[end - size : end]), []).append(end)
    return ends
