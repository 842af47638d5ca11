"""Drafting from an index: trees of retrieved tokens, and a fallback drafter for rows without a match.

Letters: B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Plan, Shape
from outpace.drafters.compose.combined import Combined, Learner
from outpace.drafters.compose.union import merged_trees
from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree, candidate_tree


class TextLookup(Learner, Protocol):
    """An index that proposes continuations of each row's text."""

    def look_up(self, ctx: Context, plan: Plan) -> list[CandidateTree]:
        """Per row a tree of likely continuations within the plan's depth; NO_CANDIDATES for rows without a
        match."""
        ...


class LookupDrafter(Combined):
    """A drafter (core.contracts.Drafter) that drafts the candidates found by `lookup`; in rows where it
    finds none, the drafter `fallback` drafts a chain of depth `otherwise` or a tree of that shape.

    Which of the two drafts a row depends on committed tokens alone, so that the q recorded by the fallback is
    still the distribution of its tokens.
    """

    def __init__(
        self, lookup: TextLookup, fallback: Drafter | None = None, otherwise: int | Shape = 0
    ) -> None:  # `otherwise`: depth of a chain, or shape of a tree
        super().__init__(*[fallback] if fallback else [], lookups=[lookup])
        self._lookup, self._fallback = lookup, fallback
        self._shape = otherwise if isinstance(otherwise, Shape) else None
        self._depth = otherwise.depth if isinstance(otherwise, Shape) else otherwise

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        found = self._lookup.look_up(ctx, plan)
        if self._fallback is None:
            return Draft(candidate_tree(ctx.roots, found))
        depth = tuple(min(self._depth, limit) for limit in plan.depth)
        return first_found(ctx, found, self._fallback, replace(plan, depth=depth, shape=self._shape))


def first_found(ctx: Context, found: Sequence[CandidateTree], fallback: Drafter, plan: Plan) -> Draft:
    """The candidates of the rows that have any in `found`, and the draft of `fallback` in the other rows."""
    tree = candidate_tree(ctx.roots, found)
    depth = tuple(0 if each.tokens else limit for each, limit in zip(found, plan.depth, strict=True))
    draft = fallback.propose(ctx, replace(plan, depth=depth))
    if len(tree) == len(depth):
        return draft
    if len(draft.tree) == len(depth):
        return replace(draft, tree=tree)
    # the fallback's nodes keep their indices, since it may learn from them by index
    return replace(draft, tree=merged_trees(draft.tree, tree))


def chain(tokens: Sequence[int], matched: int, stop: Sequence[int] = ()) -> CandidateTree:
    """The tokens as a chain, up to and including the first stop token; NO_CANDIDATES if there are none."""
    size = min([tokens.index(token) + 1 for token in stop if token in tokens], default=len(tokens))
    return (
        CandidateTree(list(tokens[:size]), list(range(-1, size - 1)), [1.0] * size, matched)
        if size
        else NO_CANDIDATES
    )


def within(branches: CandidateTree, depth: int) -> CandidateTree:
    """The candidate tree without its nodes deeper than `depth`."""
    size = len(branches.tokens)
    if size <= depth:
        return branches
    if branches.parents == list(range(-1, size - 1)):  # a chain, in which no node has to be searched for
        return CandidateTree(
            branches.tokens[:depth], branches.parents[:depth], branches.weights[:depth], branches.matched
        )
    depths, index_of = list[int](), dict[int, int]({-1: -1})
    for node, parent in enumerate(branches.parents):
        depths.append(1 if parent < 0 else depths[parent] + 1)
        if depths[-1] <= depth:
            index_of[node] = len(index_of) - 1
    kept = [node for node in index_of if node >= 0]
    return CandidateTree(
        [branches.tokens[node] for node in kept],
        [index_of[branches.parents[node]] for node in kept],
        [branches.weights[node] for node in kept],
        branches.matched,
    )
