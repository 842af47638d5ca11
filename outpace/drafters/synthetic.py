"""A drafter whose tokens are right with a given probability, to measure the engine apart from any draft
model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Step, Want
from outpace.core.noise import Key
from outpace.core.tree import Forest, TokenTree


class Synthetic:
    """Implementation of core.contracts.Drafter that drafts a known continuation in which each token is
    replaced by a wrong one with probability 1 - `rate`.

    The continuation is the output of plain decoding for the same prompt and seed. A token after an accepted
    prefix is therefore accepted with probability `rate` at temperature 0, and at any temperature under a
    verifier that accepts the tokens equal to the target's own draws (verifiers.match.Match).
    """

    want = Want()
    claims: tuple[type[Claim], ...] = ()
    learns_across_rows = drafts_across_rows = False

    def __init__(
        self, texts: Sequence[Sequence[int]], rate: float
    ) -> None:  # `texts`: token ids of prompt and continuation, one sequence per slot
        if not 0 <= rate <= 1:
            raise ValueError(f"rate is {rate}; give a probability between 0 and 1")
        self._texts, self._rate = texts, rate

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        drafted: list[int] = []
        lengths: list[int] = []
        for row, slot in enumerate(ctx.slots):
            start = ctx.committed[row]
            right = self._texts[slot][start : start + plan.depth[row]]
            count = len(right)
            key = Key([row] * count, range(1, count + 1), range(1, count + 1), "synthetic")
            kept = ctx.noise.flip([self._rate] * count, key)
            # a wrong token, here the id below the right one, is rejected together with all tokens after it
            drafted += [token if keep else abs(token - 1) for token, keep in zip(right, kept, strict=True)]
            lengths.append(count)
        if not drafted:
            return Draft(TokenTree.roots(ctx.roots))
        tokens = torch.cat([ctx.roots, torch.tensor(drafted)])
        return Draft(TokenTree(tokens, Forest.chain(tuple(lengths))))

    def observe(self, step: Step) -> None:
        """Does nothing: there is nothing to learn."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state is kept per request."""
