"""Retrieval (He et al. 2024, REST): the most frequent continuations of a text's last tokens in a corpus and
in earlier requests."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Step, Want
from outpace.drafters.lookup.candidate_tree import candidate_tree
from outpace.drafters.lookup.past_requests import PastRequests
from outpace.indexes.candidates import NO_CANDIDATES


class Retrieval:
    """Implementation of core.contracts.Drafter: the `nodes` most frequent prefixes of the continuations of
    the longest suffix of the text that occurs in the corpus or in earlier requests."""

    want = Want()
    claims: tuple[type[Claim], ...] = ()
    drafts_across_rows = False

    def __init__(
        self, past: PastRequests, nodes: int = 64, *, max_ngram: int = 16, min_ngram: int = 2
    ) -> None:
        if nodes < 1:
            raise ValueError(f"a tree of {nodes} nodes: ask for at least one")
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(
                f"matches of {min_ngram} to {max_ngram} tokens: give min_ngram >= 1 and max_ngram >= "
                "min_ngram"
            )
        self._past, self._nodes, self._max_ngram, self._min_ngram = past, nodes, max_ngram, min_ngram
        self.learns_across_rows = past.learns_across_rows

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        found = [
            self._past.branches(
                tokens[-self._max_ngram :].tolist(), self._nodes, depth, self._max_ngram, self._min_ngram
            )
            if depth > 0
            else NO_CANDIDATES
            for tokens, depth in zip(ctx.tokens, plan.depth, strict=True)
        ]
        return Draft(candidate_tree(ctx.roots, found))

    def observe(self, step: Step) -> None:
        self._past.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        self._past.release(slots)
