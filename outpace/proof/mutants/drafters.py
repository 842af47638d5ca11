"""Known-wrong drafters: mistakes made in published code, each one line away from an honest drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Step, Want
from outpace.core.grower import DRAFT, Grower
from outpace.core.noise import TARGET, Key, Noise
from outpace.core.tree import TokenTree
from outpace.drafters.compose.union import Rekeyed
from outpace.models.table import TableTarget
from outpace.sampling.warp import warp


class Honest:
    """The drafter the variants spoil: reads a table model, draws `width` children of every node."""

    want = Want()
    claims: tuple[type[Claim], ...] = (Drawn,)
    learns_across_rows = drafts_across_rows = False

    def __init__(self, model: TableTarget, *, width: int = 1, replace: bool = False) -> None:
        self.model, self.width, self.replace = model, width, replace

    def distribution(self, ctx: Context, row: int, path: Sequence[int]) -> Tensor:  # (V,)
        """q after the row's tokens and this path of draft tokens."""
        state = self.model.state([*ctx.tokens[row].tolist(), *path])
        return warp(self.model.logits[state][None], [ctx.sampling[row]])[0]

    def children(self, grower: Grower, at: list[int], q: Tensor, ctx: Context) -> list[int]:
        return grower.add_drawn(at, q, self.width, ctx.noise, replace=self.replace)

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        return tree

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        grower = Grower(ctx.roots)
        frontier = list(range(len(plan.depth)))
        for level in range(max(plan.depth)):
            frontier = [node for node in frontier if plan.depth[grower.rows[node]] > level]
            if not frontier:
                break
            tree = grower.structure()
            tokens, forest = tree.tokens.tolist(), tree.forest
            paths = [[tokens[node] for node in forest.path(leaf)[1:]] for leaf in frontier]
            q = torch.stack(
                [
                    self.distribution(ctx, grower.rows[n], path)
                    for n, path in zip(frontier, paths, strict=True)
                ]
            )
            frontier = self.children(grower, frontier, q, ctx)
        return Draft(self.finish(grower.tree(), ctx))

    def observe(self, step: Step) -> None:
        """Nothing to learn."""

    def release(self, slots: Sequence[int]) -> None:
        """Nothing kept."""


class ArgmaxClaimed(Honest):
    """The likeliest token, claimed to be a draw from q."""

    def children(self, grower: Grower, at: list[int], q: Tensor, ctx: Context) -> list[int]:
        return grower.add_drawn(at, q, 1, _Argmax(), replace=False)


class TopClaimed(Honest):
    """The likeliest tokens in falling order, claimed to be draws, with or without replacement."""

    def children(self, grower: Grower, at: list[int], q: Tensor, ctx: Context) -> list[int]:
        return grower.add_drawn(at, q, 2, _Argmax(), replace=self.replace)


class Dropped(Honest):
    """Drawn, looked at, and dropped where q is low: the claim no longer holds for what is left."""

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        claim = tree.claim
        if not isinstance(claim, Drawn):
            return tree
        tokens = tree.tokens.tolist()
        kept = [
            node for node, row in enumerate(claim.row) if row < 0 or float(claim.q[row, tokens[node]]) > 0.3
        ]
        kept = [node for node in kept if set(tree.forest.path(node)) <= set(kept)]
        return picked(tree, claim, kept)


class Sorted(Honest):
    """Siblings drawn without replacement, then put in falling order of q."""

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        claim = tree.claim
        if not isinstance(claim, Drawn):
            return tree
        tokens, forest = tree.tokens.tolist(), tree.forest
        order = list(range(forest.num_rows))
        order += sorted(
            range(forest.num_rows, len(tree)),
            key=lambda n: self.rank(float(claim.q[claim.row[n], tokens[n]]), tokens[n]),
        )
        return picked(tree, claim, order)

    def rank(self, belief: float, token: int) -> float:
        return -belief


class Numbered(Sorted):
    """Siblings drawn without replacement, then put in the order of their numbers."""

    def rank(self, belief: float, token: int) -> float:
        return token


class ClaimedIndependent(Honest):
    """Drawn without replacement, claimed to be independent draws."""

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        claim = tree.claim
        if not isinstance(claim, Drawn):
            return tree
        return TokenTree(tree.tokens, tree.forest, None, replace(claim, replace=(True,) * len(claim.replace)))


class OffByOne(Honest):
    """The distribution claimed is the one from a token earlier."""

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        claim = tree.claim
        if not isinstance(claim, Drawn):
            return tree
        rows = [
            self.distribution(replace(ctx, tokens=tuple(t[:-1] for t in ctx.tokens)), row, ())
            for row in tree.forest.rows
        ]
        q = claim.q.clone()
        for node, row in enumerate(claim.row):
            if row >= 0 and tree.forest.depths[node] == 1:
                q[row] = rows[node]
        return TokenTree(tree.tokens, tree.forest, None, replace(claim, q=q))


class OtherTemperature(Honest):
    """Drawn after temperature, claimed before it."""

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        claim = tree.claim
        if not isinstance(claim, Drawn):
            return tree
        return TokenTree(
            tree.tokens, tree.forest, None, replace(claim, q=claim.q.sqrt() / claim.q.sqrt().sum(-1, True))
        )


class Coupled(Honest):
    """Drawn with the target's own noise, yet claimed to be independent of it: the residual re-uses it."""

    def children(self, grower: Grower, at: list[int], q: Tensor, ctx: Context) -> list[int]:
        return grower.add_drawn(at, q, 1, as_target(ctx.noise, DRAFT), replace=False)


class ReadsRefused(Honest):
    """Its distribution depends on the last refused token: right by itself, wrong where noise is keyed by
    position alone."""

    def __init__(self, model: TableTarget) -> None:
        super().__init__(model)
        self._refused: dict[int, int] = {}

    def distribution(self, ctx: Context, row: int, path: Sequence[int]) -> Tensor:
        return super().distribution(ctx, row, path).roll(self._refused.get(ctx.slots[row], 0), 0)

    def observe(self, step: Step) -> None:
        tokens, forest = step.draft.tree.tokens.tolist(), step.draft.tree.forest
        for row, slot in enumerate(step.ctx.slots):
            node = step.verdict.leaf[row]
            refused = 0
            while forest.children[node]:
                node = forest.children[node][0]
                refused = tokens[node]
            self._refused[slot] = refused


class _Argmax:
    """Not noise at all: always the likeliest options."""

    def draw(self, probs: Tensor, k: int, key: Key, *, replace: bool) -> Tensor:
        return probs.topk(k).indices

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        return probs.argmax(-1)

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        return [chance >= 0.5 for chance in accept]


def as_target(noise: Noise, *uses: str) -> Noise:
    """Noise whose draws of these uses are the target's own."""
    return Rekeyed(
        noise, lambda key: Key(key.rows, key.nodes, key.depths, TARGET, key.draw) if key.use in uses else key
    )


def picked(tree: TokenTree, claim: Drawn, nodes: list[int]) -> TokenTree:
    """Only these nodes in this order, the claim carried over as if nothing had been chosen."""
    place = {node: index for index, node in enumerate(nodes)}
    parents = [place.get(tree.forest.parents[node], -1) for node in nodes]
    forest = type(tree.forest).of(parents, tree.forest.num_rows)
    return TokenTree(
        tree.tokens[nodes], forest, None, replace(claim, row=tuple(claim.row[n] for n in nodes), draws=None)
    )
