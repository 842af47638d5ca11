"""Lookup in suffix trees with counts (Oliaro et al. 2025, SuffixDecoding): one of the request's own text, one
of the text of earlier requests."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.context import Context
from outpace.core.contracts import Plan, Step
from outpace.drafters.lookup.request_memory import RequestMemory
from outpace.drafters.lookup.text_lookup import within
from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree
from outpace.indexes.compiled_loops import Tokens
from outpace.indexes.suffix_tree import SuffixTree


class SuffixTreeLookup:
    """Implementation of drafters.lookup.text_lookup.TextLookup: of the drafts from two suffix trees, the one
    with the larger expected number of accepted tokens.

    A request's own tree holds its prompt and generated tokens; the common tree holds the generated tokens of
    requests that have ended, at most `max_cached_tokens` of them, the oldest dropped first. The end of the
    request's text, which has no continuation yet, counts as one more occurrence in both trees, so that
    probability estimates from the same number of occurrences are comparable.
    """

    learns_across_rows = True

    def __init__(
        self,
        depth: int = 64,  # depth of the suffix trees: matched and drafted tokens together
        *,
        max_spec_factor: float = 1.0,  # most draft tokens: max_spec_factor * matched tokens + max_spec_offset
        max_spec_offset: float = 0.0,
        min_token_prob: float = 0.1,  # least estimated probability that a draft token is reached
        tree: bool = False,  # draft the most probable nodes in place of one path
        min_score: float = 0.0,  # drafts with no more expected accepted tokens than this are dropped
        max_cached_tokens: int = 1 << 22,
    ) -> None:
        if not 0 < min_token_prob <= 1:
            raise ValueError(f"min_token_prob is {min_token_prob}; give a probability above 0 and at most 1")
        self.common = SuffixTree(depth, max_cached_tokens)
        self._depth, self._max_spec_factor, self._max_spec_offset = depth, max_spec_factor, max_spec_offset
        self._min_token_prob = min_token_prob
        self._tree, self._min_score = tree, min_score
        self._requests = RequestMemory(lambda: SuffixTree(depth, max_cached_tokens), self._learn)
        self._learnt = 0  # number of texts added to the common tree

    def look_up(self, ctx: Context, plan: Plan) -> list[CandidateTree]:
        found: list[CandidateTree] = []
        for row, (own, new) in enumerate(self._requests.follow(ctx)):
            if len(new):
                own.extend(0, new.numpy())
            context = ctx.tokens[row][-self._depth :].numpy()
            best = self._speculate(own, context, plan.depth[row], 0)
            if self.common.num_tokens:
                other = self._speculate(self.common, context, plan.depth[row], 1)
                best = max(best, other, key=lambda each: each.expected_accepted)
            found.append(best if best.expected_accepted > self._min_score else NO_CANDIDATES)
        return found

    def observe(self, step: Step) -> None:
        self._requests.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        self._requests.release(slots)

    def _learn(self, text: list[int]) -> None:
        self.common.extend(self._learnt, text)
        self.common.finish(self._learnt)
        self._learnt += 1

    def _speculate(
        self, index: SuffixTree, context: Tokens, max_tokens: int, unfollowed: int
    ) -> CandidateTree:
        if max_tokens < 1:
            return NO_CANDIDATES
        found = index.speculate(
            context,
            max_tokens,
            max_spec_factor=self._max_spec_factor,
            max_spec_offset=self._max_spec_offset,
            min_token_prob=self._min_token_prob,
            tree=self._tree,
            extra_occurrences=unfollowed,
        )
        return within(found, max_tokens)
