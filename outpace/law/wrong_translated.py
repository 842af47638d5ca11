"""Known-wrong drafters for other vocabularies: one line away from those that translate rightly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Drafter, Plan
from outpace.core.grower import Grower
from outpace.core.noise import Noise
from outpace.core.tree import TokenTree
from outpace.drafters.grow import Read, grow
from outpace.drafters.reading import Reading
from outpace.drafters.translate import Tails, Translated
from outpace.models.vocabulary import Foreign
from outpace.recipes.omnidraft import Merging, _Row
from outpace.recipes.slrs import String, Strings
from outpace.recipes.tli import Shared


class NotRenormalised(Shared):
    """The draft's law is cut to shared tokens after it was computed, and claimed as it is."""

    def grow(self, ctx: Context, plan: Plan, read: Read, tails: Tails) -> TokenTree:
        claimed: list[Tensor] = []

        def children(grower: Grower, at: Sequence[int], widths: Sequence[int], q: Tensor, noise: Noise) -> None:
            left = q.masked_fill(self.strange, 0)
            claimed.append(left)
            grower.add_drawn(at, left / left.sum(-1, keepdim=True), widths, noise)

        tree = grow(ctx, plan, read, children=children)
        if isinstance(tree.claim, Drawn):
            tree = replace(tree, claim=replace(tree.claim, q=torch.cat(claimed)))
        return tree


class TwoForOne(Shared):
    """Two of the draft's tokens spell the same: both may be drawn, and the law of one of them is claimed."""

    def __init__(self, foreign: Foreign, vocab: int, *, sampled: bool) -> None:
        super().__init__(foreign, vocab, sampled=sampled)
        twins = [foreign.ours.ids.get(piece or b"", -1) for piece in foreign.theirs.pieces]
        self._twin_of = torch.tensor(twins).maximum(self._twin_of)
        self.strange = self._twin_of < 0


class _Misclaimed(Strings):
    """Claims other laws than it drew from."""

    def __init__(self, foreign: Foreign, vocab: int, least: float) -> None:
        super().__init__(foreign, vocab, least)
        self._claimed: list[Tensor] = []

    def grow(self, ctx: Context, plan: Plan, read: Read, tails: Tails) -> TokenTree:
        self._claimed = []
        tree = super().grow(ctx, plan, read, tails)
        if isinstance(tree.claim, Drawn):
            tree = replace(tree, claim=replace(tree.claim, q=torch.cat(self._claimed)))
        return tree


class OneWay(_Misclaimed):
    """Claims the law of strings written byte by byte, as if the draft could not write them in longer tokens."""

    def __init__(self, foreign: Foreign, vocab: int, least: float) -> None:
        super().__init__(foreign, vocab, least)
        self._bytewise = _Bytewise(foreign, vocab, least)

    def law(self, strings: Reading, starts: Sequence[int], ctx: Context) -> Tensor:
        self._claimed.append(self._bytewise.law(strings, starts, ctx))
        return super().law(strings, starts, ctx)


class Leftover(_Misclaimed):
    """What the draft wrote beyond a token becomes the next one, claimed as if it could be any.

    It cannot be what would have made the token before it a longer one.
    """

    def _draw(
        self, told: Grower, ctx: Context, at: Sequence[tuple[int, int]], law: Tensor, mass: Sequence[float]
    ) -> list[tuple[int, int, int]]:
        self._claimed.append(law)
        ours, tokens, beyond = self.foreign.ours, told.structure().tokens.tolist(), law.clone()
        for place, (row, node) in enumerate(at):
            for token, piece in enumerate(ours.pieces):
                before = ours.pieces[tokens[node]]
                if node != row and before and piece and ours.cut(before + piece)[0] != tokens[node]:
                    beyond[place, token] = 0
        return super()._draw(told, ctx, at, beyond / beyond.sum(-1, keepdim=True), mass)


class _Bytewise(Strings):
    def after(self, strings: Reading, followed: Sequence[String], ctx: Context) -> Tensor:
        q = super().after(strings, followed, ctx)
        q = q * torch.tensor([len(piece or b" ") == 1 for piece in self.foreign.theirs.pieces])
        return q / q.sum(-1, keepdim=True)


class Unconditioned(Merging):
    """A token that was not merged is taken to say nothing of the one after it."""

    def unmerged(self, law: Tensor, pairs: dict[int, int]) -> Tensor:
        return law


class Unsubtracted(Merging):
    """A token keeps the chance of all that it could have begun, though some of it was merged."""

    def _law(self, row: _Row, laws: dict[int, Tensor]) -> Tensor:
        q, twins = super()._law(row, laws), self._foreign.twins
        assert row.law is not None
        for first in row.open:
            if first in twins:
                q[twins[first]] = row.law[first]
        return q


def translated(drafting: Shared | Strings, foreign: Foreign) -> Drafter:
    """A drafter of this kind."""
    returning = drafting.renamed if isinstance(drafting, Shared) else None
    return Translated(foreign, drafting.grow, returning, nodes=64, reach=16)
