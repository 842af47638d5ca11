"""Drafts from a predicted output given by the caller, such as the file that is to be edited.

An index follows the generated text through the prediction. After a difference the last n-gram of the
generated text is looked up in the prediction to set the index again, as in a diff of two files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import copy

from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Parts, Plan, StatedProbs, StepReference
from outpace.drafters.compose.combined import Combined
from outpace.drafters.lookup.text_lookup import chain, first_found
from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree

# minimum and maximum tokens of a draft; the longest has 64 nodes with its root, a CUDA graph size
MIN_DRAFT, MAX_DRAFT = (8, 63)
MAX_NGRAM, MIN_NGRAM = 3, 1  # longest and shortest n-gram looked up after a difference


def check_predictable(parts: Parts) -> None:
    """ValueError for a method whose output depends on what is drafted: a prediction would change it."""
    if isinstance(parts.reference, StatedProbs | StepReference):
        raise ValueError(
            f"the output is that of {parts.reference.description}, which depends on the method's own drafts: "
            "leave out the predicted output"
        )


class PredictionDrafter(Combined):
    """Implementation of core.contracts.Drafter: drafts the tokens of a predicted output in rows whose
    generated text agrees with it; in the other rows the drafter `otherwise` drafts.

    A draft has as many predicted tokens as have been generated in a row as predicted, between MIN_DRAFT and
    MAX_DRAFT; the plan's depth applies to `otherwise` alone. Which of the two drafts a row depends on
    committed tokens alone, so that the q recorded by `otherwise` is still the distribution of its tokens.
    """

    def __init__(self, otherwise: Drafter) -> None:
        super().__init__(otherwise)
        self._otherwise = otherwise
        self._cursors: dict[int, PredictionCursor] = {}  # of slots with a prediction
        self.drafted: dict[int, list[int]] = {}  # slot -> predicted tokens in the last draft

    def predict(self, slot: int, tokens: Sequence[int]) -> None:
        """Set the predicted output of the request in this slot, before its first draft."""
        if tokens:
            self._cursors[slot] = PredictionCursor(tokens)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        found: list[CandidateTree] = []
        for row, slot in enumerate(ctx.slots):
            cursor = self._cursors.get(slot)
            if cursor is None:
                found.append(NO_CANDIDATES)
                continue
            assumed = ctx.assumed(row)
            begin, end = ctx.prompt_lengths[row] + cursor.num_read, len(ctx.tokens[row]) - len(assumed)
            cursor.read(ctx.tokens[row][begin:end].tolist())
            if assumed:  # they may be taken back
                cursor = copy(cursor)
                cursor.read(assumed)
            tokens = cursor.following(ctx.max_draft_depth[row])
            found.append(chain(tokens, cursor.agreed, ctx.sampling[row].stop))
        self.drafted = {slot: branches.tokens for slot, branches in zip(ctx.slots, found, strict=True)}
        return first_found(ctx, found, self._otherwise, plan)

    def release(self, slots: Sequence[int]) -> None:
        super().release(slots)
        for slot in slots:
            self._cursors.pop(slot, None)


class PredictionCursor:
    """Index into the predicted output of one slot, moved as output tokens are committed."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)
        self._index: int | None = (
            0  # index of the next predicted token; None after the output differed from it
        )
        self._last_agreed = 0  # index after the last predicted token that equalled the output's
        self._last: list[int] = []  # last tokens of the output
        self._ends: dict[tuple[int, ...], list[int]] = {}  # n-gram -> indices after it in the prediction
        self.num_read = 0  # number of output tokens read
        self.agreed = 0  # number of last output tokens in a row that equal the prediction

    def read(self, new: Sequence[int]) -> None:
        """Append committed tokens of the output and move the index."""
        self.num_read += len(new)
        if not new or not self._tokens:
            return
        for token in new:
            if self._index is not None and self._tokens[self._index : self._index + 1] == [token]:
                self._index += 1
                self._last_agreed = self._index
                self.agreed += 1
            else:
                self._index, self.agreed = None, 0
        self._last = [*self._last, *new][-MAX_NGRAM:]
        if self._index is None:
            self._find()

    def following(self, max_tokens: int) -> list[int]:
        """The predicted tokens from the index on, at most `max_tokens`: as many as equalled the output
        before, between MIN_DRAFT and MAX_DRAFT; none after a difference."""
        if self._index is None:
            return []
        return self._tokens[
            self._index : self._index + min(max_tokens, MAX_DRAFT, max(MIN_DRAFT, self.agreed))
        ]

    def _find(self) -> None:
        """Set the index to the token after an occurrence, in the prediction, of the longest last n-gram of
        the output that occurs there: the first occurrence that ends after `_last_agreed`, else the last
        one."""
        self._ends = self._ends or _ends(self._tokens)
        for size in range(len(self._last), MIN_NGRAM - 1, -1):
            if ends := self._ends.get(tuple(self._last[-size:])):
                self._index = ends[min(bisect_left(ends, self._last_agreed), len(ends) - 1)]
                self.agreed = size
                return


def _ends(tokens: Sequence[int]) -> dict[tuple[int, ...], list[int]]:
    """n-gram of MIN_NGRAM to MAX_NGRAM tokens -> index of the token after each of its occurrences in
    `tokens`, ascending."""
    ends: dict[tuple[int, ...], list[int]] = {}
    for end in range(1, len(tokens) + 1):
        for size in range(MIN_NGRAM, min(MAX_NGRAM, end) + 1):
            ends.setdefault(tuple(tokens[end - size : end]), []).append(end)
    return ends
