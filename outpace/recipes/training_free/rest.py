"""REST (He et al. 2024): draft the continuations of the text's last tokens in a corpus, as a tree.

New here: Retrieval. Reuses: SuffixArray, count_trie, Match, Fixed. Exact at any temperature: the draft tokens
carry no claim, counts only rank them, and the target draws one token at each node. The paper's code draws a
token for every path and position and keeps the longest match, which is not exact.

The longest suffix of the text that occurs in the corpus is looked up in a suffix array; the most frequent
prefixes of its continuations form the tree. Requests that have ended are searched in the same way.

Use it where answers resemble one another or a corpus: code, forms, reports. Without an index it drafts from
earlier requests only, so the first request decodes plainly. Unlike the paper's, the corpus is not divided by
task, and of more than 5000 occurrences in one chunk an even sample is taken instead of the first.
"""

from __future__ import annotations

from collections.abc import Sequence

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Step, Target, Want, recipe
from outpace.drafters.lookup.past_requests import PastRequests, corpus
from outpace.indexes.candidates import NO_CANDIDATES, candidate_tree
from outpace.indexes.store import SuffixArrayFile
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2311.08252", family="training-free")
def rest(
    target: Target,
    *,
    index: SuffixArrayFile | None = None,
    nodes: int = 64,
    depth: int = 10,
    max_ngram: int = 16,
    min_ngram: int = 2,
    max_cached_tokens: int = 1 << 20,
) -> Parts:
    """A tree retrieved from a corpus and from earlier requests, verified by matching.

    Args:
        index: file of `outpace index build`; without one only earlier requests are searched
        nodes: maximum number of draft tokens per step
        depth: maximum number of tokens of a continuation
        max_ngram: maximum length of the last n-gram looked up
        min_ngram: minimum length of a match
        max_cached_tokens: number of newest tokens of earlier requests kept for retrieval; 0: none
    """
    past = PastRequests(corpus(index, target.vocab), max_cached_tokens)
    return Parts(
        target, Retrieval(past, nodes, max_ngram=max_ngram, min_ngram=min_ngram), Match(), Fixed(depth)
    )


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
