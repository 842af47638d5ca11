"""N-gram lookup in the request's own text: draft the continuation of the first occurrence of its last
n-gram."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.context import Context
from outpace.core.contracts import Plan, Step
from outpace.drafters.lookup.request_memory import RequestMemory
from outpace.drafters.lookup.text_lookup import LookupDrafter, chain
from outpace.indexes.candidates import CandidateTree


class NGram(LookupDrafter):
    """Implementation of core.contracts.DraftsAhead that drafts what `NGramLookup` finds."""

    drafts_ahead = True

    def __init__(self, max_ngram: int = 3, *, allow_shorter: bool = False) -> None:
        super().__init__(NGramLookup(max_ngram, allow_shorter=allow_shorter))


class NGramLookup:
    """Implementation of drafters.lookup.text_lookup.TextLookup with a hash map from n-grams to the ends of
    their first occurrences; O(`max_ngram`) per committed token. `allow_shorter`: also continuations shorter
    than the plan's depth."""

    learns_across_rows = False

    def __init__(self, max_ngram: int = 3, *, allow_shorter: bool = False) -> None:
        if max_ngram < 1:
            raise ValueError(f"max_ngram is {max_ngram}; an n-gram has at least one token")
        self._max_ngram, self._allow_shorter = max_ngram, allow_shorter
        self._requests = RequestMemory(lambda: _Text(max_ngram), cut=_Text.cut)

    def look_up(self, ctx: Context, plan: Plan) -> list[CandidateTree]:
        found: list[CandidateTree] = []
        for row, (text, new) in enumerate(self._requests.follow(ctx)):
            text.extend(new.tolist())
            size, tokens = text.following(plan.depth[row], self._allow_shorter)
            found.append(chain(tokens, size, ctx.sampling[row].stop))
        return found

    def observe(self, step: Step) -> None:
        """Does nothing: `look_up` reads the committed tokens from its context."""

    def release(self, slots: Sequence[int]) -> None:
        self._requests.release(slots)


class _Text:
    """One request's tokens and a hash map of their n-grams, without the n-grams that end with the last
    token."""

    def __init__(self, max_ngram: int) -> None:
        self.tokens: list[int] = []
        self._max_ngram = max_ngram
        # n-gram -> index of the token after its first occurrence
        self._first: dict[tuple[int, ...], int] = {}

    def extend(self, new: Sequence[int]) -> None:
        tokens, max_ngram, first = self.tokens, self._max_ngram, self._first
        for token in new:
            # n-grams that end before this token: they have a continuation from now on
            end = len(tokens)
            for size in range(1, min(max_ngram, end) + 1):
                first.setdefault(tuple(tokens[end - size :]), end)
            tokens.append(token)

    def cut(self, length: int) -> None:
        """Forget the tokens from index `length` on."""
        tokens, first = self.tokens, self._first
        for end in range(max(length, 1), len(tokens)):
            for size in range(1, min(self._max_ngram, end) + 1):
                if first.get(ngram := tuple(tokens[end - size : end])) == end:
                    del first[ngram]
        del tokens[length:]

    def following(self, max_tokens: int, allow_shorter: bool) -> tuple[int, list[int]]:
        """Length of the longest last n-gram that occurred before, and up to `max_tokens` tokens after it;
        matches with fewer tokens after them count only with `allow_shorter`. (0, []) without a match."""
        tokens = self.tokens
        if max_tokens > 0:
            for size in range(min(self._max_ngram, len(tokens)), 0, -1):
                start = self._first.get(tuple(tokens[-size:]))
                # the first occurrence has the longest continuation: if it is too short, all are
                if start is not None and (allow_shorter or start + max_tokens <= len(tokens)):
                    return size, tokens[start : start + max_tokens]
        return 0, []
