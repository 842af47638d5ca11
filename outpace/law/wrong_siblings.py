"""Known-wrong ways with several siblings: rules scaled for other draws than were made, paths kept for being likely."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Plan
from outpace.core.tree import TokenTree
from outpace.drafters.beam import beam
from outpace.drafters.grow import Read
from outpace.drafters.lm import LM
from outpace.law.wrong_drafters import Honest, picked
from outpace.models.toy import Table
from outpace.verifiers.kseq import KSequential


class Underscaled(KSequential):
    """Every draw is tested as if it were the only one: together they give some tokens too often."""

    def scale(self, p: Tensor, q: Tensor, num: Sequence[int]) -> tuple[list[float], list[float]]:
        return [1.0] * len(num), super().scale(p, q, num)[1]


class Overdrawn(KSequential):
    """What is left of p is computed as at the smallest scale, whatever the scale was."""

    def scale(self, p: Tensor, q: Tensor, num: Sequence[int]) -> tuple[list[float], list[float]]:
        rho, _ = super().scale(p, q, num)
        return rho, rho


class NeverFewer(KSequential):
    """Goes on counting sequences that have parted from the text."""

    def __init__(self, num: int) -> None:
        super().__init__()
        self._num = num

    def scale(self, p: Tensor, q: Tensor, num: Sequence[int]) -> tuple[list[float], list[float]]:
        return super().scale(p, q, [self._num] * len(num))


class CountedOnce(Honest):
    """Draws that repeat a token are dropped, the rest still claimed to be all there were."""

    def __init__(self, model: Table) -> None:
        super().__init__(model, width=2, replace=True)

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        claim, tokens, forest = tree.claim, tree.tokens.tolist(), tree.forest
        if not isinstance(claim, Drawn):
            return tree
        first = {(forest.parents[node], tokens[node]): node for node in reversed(range(len(tree)))}
        roots = range(forest.num_rows)
        return picked(tree, claim, [*roots, *sorted(set(first.values()) - set(roots))])


def likeliest_kept(model: Table, width: int) -> LM:
    """A drafter that draws one path more than it keeps, and keeps the likeliest instead of those that came first."""
    return LM(model, growth=partial(_likeliest, width=width))


def _likeliest(ctx: Context, plan: Plan, read: Read, *, width: int) -> TokenTree:
    tree = beam(ctx, plan, read, widths=(width + 1,))
    claim, tokens, forest = tree.claim, tree.tokens.tolist(), tree.forest
    if not isinstance(claim, Drawn):
        return tree
    kept = list(range(forest.num_rows))
    for root in range(forest.num_rows):
        children = forest.children[root]
        # the first child's law is that of the row, without anything taken out
        kept += sorted(sorted(children, key=lambda n: -float(claim.q[claim.row[children[0]], tokens[n]]))[:width])
    return picked(tree, claim, kept)
