"""N-gram lookup in the request's own text: draft what followed the last n-gram the first time it occurred."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Step, Want
from outpace.core.tree import Forest, TokenTree


class NGram:
    """core.contracts.Drafter by a map from n-grams to where they first ended; O(longest) per committed token."""

    want = Want()
    claims: tuple[type[Claim], ...] = ()

    def __init__(self, longest: int = 3, *, clip: bool = False) -> None:
        if longest < 1:
            raise ValueError(f"longest is {longest}; an n-gram has at least one token")
        self._longest, self._clip = longest, clip
        self._texts: dict[int, _Text] = {}

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        found: list[list[int]] = []
        for row, slot in enumerate(ctx.slots):
            text = self._texts.get(slot)
            if text is None:
                text = self._texts[slot] = _Text(self._longest)
            text.extend(ctx.tokens[row][len(text.tokens) :].tolist())
            found.append(text.following(plan.depth[row], self._clip))
        forest = Forest.chain(tuple(len(each) for each in found))
        drafted = [token for each in found for token in each]
        if not drafted:
            return Draft(TokenTree.roots(ctx.roots))
        return Draft(TokenTree(torch.cat([ctx.roots, torch.tensor(drafted)]), forest))

    def observe(self, step: Step) -> None:
        """Nothing to learn: `propose` reads what was committed."""

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._texts.pop(slot, None)


class _Text:
    """One request's tokens, and where each n-gram first ended, the last token's own n-grams not counted."""

    def __init__(self, longest: int) -> None:
        self.tokens: list[int] = []
        self._longest = longest
        self._first: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token after its first occurrence

    def extend(self, new: Sequence[int]) -> None:
        tokens, longest, first = self.tokens, self._longest, self._first
        for token in new:
            # the n-grams that end where something now follows
            end = len(tokens)
            for size in range(1, min(longest, end) + 1):
                first.setdefault(tuple(tokens[end - size :]), end)
            tokens.append(token)

    def following(self, most: int, clip: bool) -> list[int]:
        """Up to `most` tokens that followed the longest known n-gram; all `most` of them unless `clip`."""
        tokens = self.tokens
        if most > 0:
            for size in range(min(self._longest, len(tokens)), 0, -1):
                start = self._first.get(tuple(tokens[-size:]))
                # the first occurrence has the longest continuation: if it falls short, every other does
                if start is not None and (clip or start + most <= len(tokens)):
                    return tokens[start : start + most]
        return []
