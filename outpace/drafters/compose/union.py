"""Several drafters at once: their trees side by side below the same roots.

Letters: M choices at once, K options each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace as replaced

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Plan, Step, Want
from outpace.core.noise import Key, Noise
from outpace.core.tree import Forest, TokenTree


class UnionDrafter:
    """core.contracts.Drafter: each of `drafters` follows the plan, and what they propose is merged."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        if not drafters:
            raise ValueError("give at least one drafter")
        self._drafters = tuple(drafters)
        self.want = Want()
        for drafter in drafters:
            self.want |= drafter.want
        self.claims: tuple[type[Claim], ...] = tuple(
            {claim for drafter in drafters for claim in drafter.claims}
        )
        self.learns_across_rows = any(drafter.learns_across_rows for drafter in drafters)
        self.drafts_across_rows = any(drafter.drafts_across_rows for drafter in drafters)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        drafts = [self._drafters[0].propose(ctx, plan)]
        tree = drafts[0].tree
        for index, drafter in enumerate(self._drafters[1:], 1):
            drafts.append(drafter.propose(replaced(ctx, noise=apart(ctx.noise, index)), plan))
            tree = merged(tree, drafts[-1].tree)
        return Draft(tree, sum(draft.forwards for draft in drafts), sum(draft.seconds for draft in drafts))

    def observe(self, step: Step) -> None:
        for drafter in self._drafters:
            drafter.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.release(slots)


def merged(one: TokenTree, other: TokenTree) -> TokenTree:
    """Both drafts below the same roots; equal tokens stay separate nodes, since each has a distribution of its own."""
    rows, tokens = one.forest.num_rows, other.tokens.to(one.tokens.device)
    if rows != other.forest.num_rows or not torch.equal(one.tokens[:rows], tokens[:rows]):
        raise ValueError("only trees of the same roots can be merged")
    shift = len(one) - rows
    parents = [parent + shift if parent >= rows else parent for parent in other.forest.parents[rows:]]
    forest = Forest.of((*one.forest.parents, *parents), rows)
    return TokenTree(torch.cat([one.tokens, tokens[rows:]]), forest, None, _both_claims(one, other))


def _both_claims(one: TokenTree, other: TokenTree) -> Claim | None:
    """The claim of both trees together: the other's nodes follow, without its roots."""
    if one.claim is None and other.claim is None:
        return None
    for claim in (one.claim, other.claim):
        if not isinstance(claim, Drawn | None):
            raise TypeError(f"trees that claim {type(claim).__name__} cannot be merged")
    whole = {tree.claim.ids is None for tree in (one, other) if isinstance(tree.claim, Drawn)}
    if len(whole) == 2:
        raise TypeError(
            "a distribution over the whole vocabulary and one over listed tokens cannot be merged"
        )
    row, replace, q, listed = [], [], [], []
    for tree, skip in ((one, 0), (other, one.forest.num_rows)):
        claim = tree.claim
        if claim is None:
            row += [-1] * (len(tree) - skip)
            continue
        assert isinstance(claim, Drawn)
        row += [index + len(replace) if index >= 0 else -1 for index in claim.row[skip:]]
        replace += claim.replace
        q.append(claim.q)
        if claim.ids is not None:
            listed.append(claim.ids)
    return Drawn(torch.cat(q), tuple(row), tuple(replace), torch.cat(listed) if listed else None)


class Rekeyed:
    """core.noise.Noise: another's, under other keys."""

    def __init__(self, noise: Noise, rekey: Callable[[Key], Key]) -> None:
        self._noise, self._rekey = noise, rekey

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        return self._noise.choose(probs, self._rekey(key))

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        return self._noise.flip(accept, self._rekey(key))

    def draw(self, probs: Tensor, k: int, key: Key, *, replace: bool) -> Tensor:  # (M, K) -> (M, k)
        return self._noise.draw(probs, k, self._rekey(key), replace=replace)


def apart(noise: Noise, index: int) -> Noise:
    """Noise of its own for one of several parts that draw in the same step, so that no two share a draw."""
    return Rekeyed(noise, lambda key: Key(key.rows, key.nodes, key.depths, key.use, key.draw + (index << 16)))
