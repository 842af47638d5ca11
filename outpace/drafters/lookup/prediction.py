"""Drafting from the answer that the caller expects, such as the file that is to be edited.

A pointer follows the answer through the expected tokens. After a difference the answer's last n-gram is
looked up in the expected tokens to set the pointer again, as a diff of two files does.
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
)  # least and most tokens of a draft; with its root the longest has 64 nodes, a CUDA graph size
LONGEST, SHORTEST = 3, 1  # longest and shortest n-gram with which the pointer is set again


class PredictionDrafter:
    """core.contracts.Drafter: the expected tokens in rows whose answer agrees with them, the drafter
    `otherwise` in the others.

    A draft of expected tokens is as long as the current run of agreement, between LEAST and MOST tokens; the
    plan's depth applies to `otherwise` alone. Which of the two drafts a row depends on committed tokens
    alone, so that claims of `otherwise` stay true.
    """

    def __init__(
        self, otherwise: Drafter, predictions: Sequence[Sequence[int]]
    ) -> None:  # `predictions`: expected tokens per slot; may be empty
        self._otherwise = otherwise
        self._places = [Place(tokens) for tokens in predictions]
        self.want = otherwise.want
        self.claims: tuple[type[Claim], ...] = otherwise.claims
        self.learns_across_rows = otherwise.learns_across_rows
        self.drafts_across_rows = otherwise.drafts_across_rows
        self.drafted: dict[int, list[int]] = {}  # slot -> expected tokens in the last draft

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
    """The pointer of one answer into its expected tokens."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)
        self._at: int | None = 0  # index of the next expected token; None after a difference
        self._near = 0  # index after the last expected token that agreed
        self._last: list[int] = []  # the answer's last tokens
        self._ends: dict[tuple[int, ...], list[int]] = {}  # n-gram -> indices after occurrences, ascending
        self.num_read = 0  # number of answer tokens read
        self.agreed = 0  # length of the current run of agreeing tokens

    def read(self, new: Sequence[int]) -> None:
        """Append tokens to the answer and move the pointer."""
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
        """The expected tokens from the pointer on, at most `room`: as many as agreed before, between LEAST
        and MOST; none after a difference."""
        if self._at is None:
            return []
        return self._tokens[self._at : self._at + min(room, MOST, max(LEAST, self.agreed))]

    def _find(self) -> None:
        """Set the pointer after an occurrence of the answer's longest last n-gram that occurs: the first one
        that ends after the last agreement, or else the last one."""
        self._ends = self._ends or _ends(self._tokens)
        for size in range(len(self._last), SHORTEST - 1, -1):
            if ends := self._ends.get(tuple(self._last[-size:])):
                self._at = ends[min(bisect_left(ends, self._near), len(ends) - 1)]
                self.agreed = size
                return


def _ends(tokens: Sequence[int]) -> dict[tuple[int, ...], list[int]]:
    """n-gram of SHORTEST to LONGEST tokens -> index of the token after each of its occurrences in `tokens`,
    ascending."""
    ends: dict[tuple[int, ...], list[int]] = {}
    for end in range(1, len(tokens) + 1):
        for size in range(SHORTEST, min(LONGEST, end) + 1):
            ends.setdefault(tuple(tokens[end - size : end]), []).append(end)
    return ends
