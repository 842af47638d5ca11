"""Mutants of draft models with several exits: the exit that drafts depends on the token that is drawn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan
from outpace.core.grower import Grower
from outpace.core.noise import Key
from outpace.models.table import TableTarget
from outpace.proof.mutants.drafters import CorrectDrafter

SURE = 0.4  # least draft probability of a token that is kept from the first exit


class ExitByToken(CorrectDrafter):
    """Mutant: draws a token from the first exit, and if its draft probability is low, replaces it by one from
    the deeper exit. Each is recorded as drawn from its exit, but the first exit's tokens are a selection."""

    def __init__(self, first: TableTarget, deeper: TableTarget) -> None:
        super().__init__(first)
        self._deeper = CorrectDrafter(deeper)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        grower = Grower(ctx.roots)
        for row, depth in enumerate(plan.depth):
            node, path = row, list[int]()
            for level in range(depth):
                q = self.distribution(ctx, row, path)[None]
                key = Key([row], [level], [level], "first exit")
                token = int(ctx.noise.choose(q, key))
                if q[0, token] >= SURE:
                    (node,) = grower.add_drawn([node], q, 1, Given(token))
                else:
                    q = self._deeper.distribution(ctx, row, path)[None]
                    (node,) = grower.add_drawn([node], q, 1, ctx.noise)
                path.append(int(grower.newest[0]))
        return Draft(grower.tree())


class Given:
    """Stand-in for core.noise.Noise that always draws a given option."""

    def __init__(self, option: int) -> None:
        self._option = option

    def draw(self, probs: Tensor, k: int, key: Key, *, replace: bool) -> Tensor:
        raise NotImplementedError

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        return torch.full((len(probs),), self._option)

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        raise NotImplementedError
