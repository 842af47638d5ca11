"""Lookup in suffix automata (Hu et al. 2025, SAM Decoding): one of the request's own text and, if given, one
of a corpus."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from outpace.core.context import Context
from outpace.core.contracts import Plan, Step
from outpace.drafters.lookup.request_memory import RequestMemory
from outpace.drafters.lookup.text_lookup import chain, within
from outpace.indexes.automata.online import SuffixAutomaton
from outpace.indexes.automata.static import Pointer, StaticAutomaton
from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree

GROWTH = 4  # draft nodes per matched token if `min_ngram` is 0
PER_DEPTH = 8  # maximum number of nodes per depth in a tree drafted from the corpus


class Request:
    """One request's text: its suffix automaton, and its longest suffix in the corpus automaton."""

    def __init__(self) -> None:
        self.own = SuffixAutomaton()
        self.pointer = Pointer()


class SuffixAutomatonLookup:
    """Implementation of drafters.lookup.text_lookup.TextLookup: continuations of the longest suffix of the
    text that occurred before, in the text or in the corpus.

    The corpus is used where its match is longer by more than `bias` tokens or the text has no match.
    `min_ngram` = 0: the draft has length_offset + 4 * (length of the match) tokens and is no deeper than the
    plan; a match in the text gives a chain, one in the corpus a tree. `min_ngram` > 0, for use with a second
    drafter where there is no match: shorter matches are ignored (for the corpus, the length minus `bias`
    counts), and every draft is a chain as long as the plan's depth.

    `recent`: the draft is what followed the most recent occurrence of the suffix, in place of the first
    one. If the text repeats with a period no longer than the match, the draft repeats that period.
    """

    learns_across_rows = False

    def __init__(
        self,
        corpus: StaticAutomaton | None = None,
        *,
        min_ngram: int = 0,
        bias: int = 5,
        length_offset: int = 1,
        recent: bool = False,
    ) -> None:
        if min(min_ngram, bias, length_offset) < 0:
            raise ValueError(
                f"min_ngram is {min_ngram}, bias {bias} and length_offset {length_offset}; none of them is "
                "negative"
            )
        self._corpus, self._min_ngram, self._bias, self._length_offset = (
            corpus,
            min_ngram,
            bias,
            length_offset,
        )
        self._recent = recent
        SuffixAutomaton((0, 0))  # loads the compiled loops, which takes longer than many requests
        self._requests = RequestMemory(Request)

    def look_up(self, ctx: Context, plan: Plan) -> list[CandidateTree]:
        found: list[CandidateTree] = []
        for row, (request, new) in enumerate(self._requests.follow(ctx)):
            if len(new):
                tokens = new.numpy().astype(numpy.int32)
                request.own.append(tokens)
                if self._corpus is not None:
                    request.pointer = self._corpus.move(request.pointer, tokens)
            found.append(self._following(request, plan.depth[row], ctx.sampling[row].stop))
        return found

    def observe(self, step: Step) -> None:
        """Does nothing: `look_up` reads the committed tokens from its context."""

    def release(self, slots: Sequence[int]) -> None:
        self._requests.release(slots)

    def _following(self, request: Request, max_tokens: int, stop: Sequence[int]) -> CandidateTree:
        own_length, corpus_length = request.own.matched, request.pointer.length
        biased_length = corpus_length - self._bias
        if max_tokens < 1 or max(own_length, biased_length) < self._min_ngram:
            return NO_CANDIDATES
        corpus = self._corpus if biased_length > own_length or not own_length else None
        size = (
            max_tokens
            if self._min_ngram
            else min(max_tokens, self._length_offset + GROWTH * (corpus_length if corpus else own_length))
        )
        if corpus is None:
            own = request.own
            following = own.recent_continuation(size) if self._recent else own.continuation(size)
            return chain(following, own_length, stop)
        if self._min_ngram:
            return chain(corpus.continuation(request.pointer, size), corpus_length, stop)
        return within(corpus.continuation_tree(request.pointer, size, PER_DEPTH), max_tokens)
