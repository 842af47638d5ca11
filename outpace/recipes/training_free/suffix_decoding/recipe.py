"""SuffixDecoding (Oliaro et al. 2025): draft the most frequent continuation of the matches in suffix trees.

New here: SuffixTreeLookup, with its tree. Reuses: LookupDrafter, DraftModel, Match or Rejection, Fixed. Exact
at any temperature: retrieved tokens carry no claim, and a fallback model's draws claim the distribution they
were drawn from.

Two suffix trees with counts are searched: one of the request's prompt and text, one of the tokens that
earlier requests generated. For every number p of last tokens that occurred before, a draft follows the most
frequent tokens, at most `depth` and `max_spec_factor` * p + `max_spec_offset` of them, while the product of
count(child) / count(parent) is at least `min_token_prob`. The draft with the largest sum of such products,
its expected number of accepted tokens, is verified. With a `fallback` model set `min_score` near the mean
number of its tokens that are accepted.

Use it where text recurs: agents, code that is edited, SQL, many samples of one task. It needs no draft model,
and gains more the more alike the requests are. A tree takes about 160 bytes per token. Without numba (extra
`retrieval`) the trees are slow.

By default a draft is a tree with as many nodes as tokens matched; with `--no-tree` it is a chain, as in the
authors' code. Such drafts are short at first where answers are short. The preset `cpu` drafts up to 15 nodes,
12 of them after a single matched token: on edits, greedy, it gave 1.08 times the tokens per second of
`prompt-lookup` on this project's test models (the zoo), and chains as long as the match 0.78 times. Counts
are divided by the parent's, as in the authors' code, not by the sum over the siblings. The end of the text
itself, which has no continuation yet, counts as one more occurrence in both trees.
"""

from __future__ import annotations

from collections.abc import Sequence

from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Step, Target, recipe
from outpace.drafters.lookup.request_memory import RequestMemory
from outpace.drafters.lookup.text_lookup import LookupDrafter, within
from outpace.drafters.model.draft_model import DraftModel
from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree
from outpace.indexes.compiled_loops import Tokens
from outpace.recipes.training_free.suffix_decoding.suffix_tree import SuffixTree
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection


@recipe(
    paper="arXiv:2411.04975",
    family="training-free",
    presets={"cpu": {"depth": 15, "max_spec_factor": 4.0, "max_spec_offset": 8.0}},
)
def suffix_decoding(
    target: Target,
    *,
    depth: int = 64,
    max_spec_factor: float = 1.0,
    max_spec_offset: float = 0.0,
    min_token_prob: float = 0.1,
    tree: bool = True,
    max_tree_depth: int = 64,
    max_cached_tokens: int = 1 << 22,
    fallback: Target | None = None,
    fallback_depth: int = 5,
    min_score: float = 2.0,
) -> Parts:
    """The most frequent continuations, from suffix trees with counts.

    Args:
        depth: maximum number of draft tokens per step
        max_spec_factor: maximum number of draft tokens per matched token
        max_spec_offset: added to that number of draft tokens
        min_token_prob: minimum estimated probability that a draft token is reached
        tree: draft a tree of the most probable nodes in place of a chain
        max_tree_depth: depth of the suffix trees: matched and drafted tokens together
        max_cached_tokens: newest tokens of earlier requests kept; the oldest are dropped first; 0: none
        fallback: draft model for rows whose expected number of accepted tokens is too low
        fallback_depth: tokens that the fallback model drafts
        min_score: expected accepted tokens at or below which the fallback model drafts instead
    """
    lookup = SuffixTreeLookup(
        max_tree_depth,
        max_spec_factor=max_spec_factor,
        max_spec_offset=max_spec_offset,
        min_token_prob=min_token_prob,
        tree=tree,
        min_score=min_score if fallback else 0.0,
        max_cached_tokens=max_cached_tokens,
    )
    if fallback is None:
        return Parts(target, LookupDrafter(lookup), Match(), Fixed(depth))
    drafter = LookupDrafter(lookup, DraftModel(fallback), fallback_depth)
    return Parts(target, drafter, Rejection(), Fixed(depth))


class SuffixTreeLookup:
    """Implementation of drafters.lookup.text_lookup.TextLookup: of the drafts from two suffix trees, the one
    with the larger expected number of accepted tokens.

    A request's own tree holds its prompt and generated tokens; the common tree holds the generated tokens of
    requests that have ended, at most `max_cached_tokens` of them, the oldest dropped first. The end of the
    request's text, which has no continuation yet, counts as one more occurrence in both trees, so that
    probability estimates from the same number of occurrences are comparable.
    """

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
        self.learns_across_rows = max_cached_tokens > 0
        self.common = SuffixTree(depth, max(1, max_cached_tokens))  # stays empty if nothing is learnt
        self._depth, self._max_spec_factor, self._max_spec_offset = depth, max_spec_factor, max_spec_offset
        self._min_token_prob = min_token_prob
        self._tree, self._min_score = tree, min_score
        learn = self._learn if self.learns_across_rows else None
        self._requests = RequestMemory(lambda: SuffixTree(depth), learn)
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
