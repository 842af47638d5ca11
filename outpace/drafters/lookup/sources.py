"""Continuations of a text's last tokens in the text itself, in earlier requests and in a corpus, for lookups
at many nodes of one draft."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.contracts import Context, Step
from outpace.drafters.lookup.past_requests import PastRequests
from outpace.drafters.lookup.request_memory import RequestMemory
from outpace.indexes.automata.online import SuffixAutomaton
from outpace.indexes.candidates import CandidateTree
from outpace.indexes.suffix_array.count_trie import count_trie


class TextSources:
    """The texts searched for continuations: the request's own text, earlier requests and a corpus."""

    def __init__(self, past: PastRequests, *, max_ngram: int = 16, min_ngram: int = 2) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(
                f"matches of {min_ngram} to {max_ngram} tokens: give min_ngram >= 1 and max_ngram >= "
                "min_ngram"
            )
        self._past, self._max_ngram, self._min_ngram = past, max_ngram, min_ngram
        self.learns_across_rows = past.learns_across_rows
        self._requests = RequestMemory(SuffixAutomaton)
        self._own: list[SuffixAutomaton] = []  # per row of the current draft the suffix automaton of its text

    def update(self, ctx: Context) -> None:
        """Append the newly committed tokens to each row's suffix automaton; to be called before each
        draft."""
        self._own = []
        for own, new in self._requests.follow(ctx):
            own.extend(new.tolist())
            self._own.append(own)

    def continuations(
        self, ctx: Context, row: int, length: int, num_nodes: int, assumed: Sequence[int] = ()
    ) -> list[CandidateTree]:
        """Continuations, up to `length` tokens long, of the row's text with `assumed` appended: one tree per
        source with a match, the weights being shares of the occurrences."""
        if length < 1:
            return []
        found: list[CandidateTree] = []
        own = self._own[row]
        matched = own.match(assumed).length
        if matched >= self._min_ngram and (chain := own.continuation(length, assumed)):
            found.append(CandidateTree(chain, list(range(-1, len(chain) - 1)), [1.0] * len(chain), matched))
        if not self._past.empty:
            context = [*ctx.tokens[row][-self._max_ngram :].tolist(), *assumed][-self._max_ngram :]
            matched, rows = self._past.rows(context, length, self._max_ngram, self._min_ngram)
            if matched:
                tokens, parents, counts, _ = count_trie(rows, num_nodes, matched)
                found.append(CandidateTree(tokens, parents, [count / len(rows) for count in counts], matched))
        return found

    def observe(self, step: Step) -> None:
        self._past.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        self._past.release(slots)
        self._requests.release(slots)
