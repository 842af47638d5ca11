"""A drafter that is right at a wished rate, for measuring the engine apart from any model's quality."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Step, Want
from outpace.core.noise import Key
from outpace.core.tree import Forest, TokenTree


class Synthetic:
    """core.contracts.Drafter that proposes the known continuation, each token spoilt with probability 1 -
    `rate`.

    The continuation is what plain decoding gave for the same prompt and seed, so the rate is met at
    temperature 0, and at any temperature under a verifier that lets the target choose.
    """

    want = Want()
    claims: tuple[type[Claim], ...] = ()
    learns_across_rows = drafts_across_rows = False

    def __init__(
        self, texts: Sequence[Sequence[int]], rate: float
    ) -> None:  # per slot: prompt and continuation
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
            # the first wrong token ends what can be accepted; any other token is wrong
            drafted += [token if keep else abs(token - 1) for token, keep in zip(right, kept, strict=True)]
            lengths.append(count)
        if not drafted:
            return Draft(TokenTree.roots(ctx.roots))
        tokens = torch.cat([ctx.roots, torch.tensor(drafted)])
        return Draft(TokenTree(tokens, Forest.chain(tuple(lengths))))

    def observe(self, step: Step) -> None:
        """Nothing to learn."""

    def release(self, slots: Sequence[int]) -> None:
        """Nothing kept."""
