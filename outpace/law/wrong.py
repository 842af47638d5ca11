"""Known-wrong variants: mistakes made in published code, kept so that the law test is seen to catch each of them.

Every variant is a set of parts on table models that would be exact but for one line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Law, Parts, Plan, Scores, Step, Verdict, Want
from outpace.core.grower import Grower
from outpace.core.noise import TARGET, Key, Noise
from outpace.core.tree import Shape, TokenTree
from outpace.law.enumerate import Branch, EnumeratedNoise
from outpace.models.toy import Table
from outpace.sampling.warp import warp
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection


class Honest:
    """The drafter the variants spoil: reads a table model, draws `width` children of every node."""

    want = Want()
    claims: tuple[type[Claim], ...] = (Drawn,)

    def __init__(self, model: Table, *, width: int = 1, replace: bool = False) -> None:
        self.model, self.width, self.replace = model, width, replace

    def law(self, ctx: Context, row: int, path: Sequence[int]) -> Tensor:  # (V,)
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
            q = torch.stack([self.law(ctx, grower.rows[n], path) for n, path in zip(frontier, paths, strict=True)])
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
    """The likeliest tokens in falling order, claimed to be draws without replacement."""

    def children(self, grower: Grower, at: list[int], q: Tensor, ctx: Context) -> list[int]:
        return grower.add_drawn(at, q, 2, _Argmax(), replace=False)


class Dropped(Honest):
    """Drawn, looked at, and dropped where q is low: the claim no longer holds for what is left."""

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        claim = tree.claim
        if not isinstance(claim, Drawn):
            return tree
        tokens = tree.tokens.tolist()
        kept = [node for node, row in enumerate(claim.row) if row < 0 or float(claim.q[row, tokens[node]]) > 0.3]
        kept = [node for node in kept if set(tree.forest.path(node)) <= set(kept)]
        return _picked(tree, claim, kept)


class Sorted(Honest):
    """Siblings drawn without replacement, then put in falling order of q."""

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        claim = tree.claim
        if not isinstance(claim, Drawn):
            return tree
        tokens, forest = tree.tokens.tolist(), tree.forest
        order = list(range(forest.num_rows))
        order += sorted(range(forest.num_rows, len(tree)), key=lambda n: -float(claim.q[claim.row[n], tokens[n]]))
        return _picked(tree, claim, order)


class ClaimedIndependent(Honest):
    """Drawn without replacement, claimed to be independent draws."""

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        claim = tree.claim
        if not isinstance(claim, Drawn):
            return tree
        return TokenTree(tree.tokens, tree.forest, None, replace(claim, replace=(True,) * len(claim.replace)))


class OffByOne(Honest):
    """The law claimed is the one from a token earlier."""

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        claim = tree.claim
        if not isinstance(claim, Drawn):
            return tree
        rows = [self.law(replace(ctx, tokens=tuple(t[:-1] for t in ctx.tokens)), row, ()) for row in tree.forest.rows]
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
        return grower.add_drawn(at, q, 1, _Renamed(ctx.noise, TARGET), replace=False)


class ReadsRefused(Honest):
    """Its law depends on the last refused token: right by itself, wrong where noise is keyed by position alone."""

    def __init__(self, model: Table) -> None:
        super().__init__(model)
        self._refused: dict[int, int] = {}

    def law(self, ctx: Context, row: int, path: Sequence[int]) -> Tensor:
        return super().law(ctx, row, path).roll(self._refused.get(ctx.slots[row], 0), 0)

    def observe(self, step: Step) -> None:
        tokens, forest = step.draft.tree.tokens.tolist(), step.draft.tree.forest
        for row, slot in enumerate(step.ctx.slots):
            node = step.verdict.leaf[row]
            refused = 0
            while forest.children[node]:
                node = forest.children[node][0]
                refused = tokens[node]
            self._refused[slot] = refused


class Forgetful(Rejection):
    """After a refusal it draws from p instead of what is left of p."""

    def verify(self, tree: TokenTree, law: Law, scores: Scores, noise: Noise) -> Verdict:
        verdict, forest = super().verify(tree, law, scores, noise), tree.forest
        refused = [row for row, leaf in enumerate(verdict.leaf) if forest.children[leaf]]
        bonus = list(verdict.bonus)
        for row in refused:
            leaf = verdict.leaf[row]
            key = Key([row], [forest.local[leaf]], [forest.depths[leaf]], "again")
            bonus[row] = int(noise.choose(law.probs([leaf]), key))
        return Verdict(verdict.leaf, bonus)


class LateLaw(Rejection):
    """Off by one on the target's side: a node is tested against the law after it."""

    def verify(self, tree: TokenTree, law: Law, scores: Scores, noise: Noise) -> Verdict:
        return super().verify(tree, _Late(law, tree), scores, noise)


class PerPath(Match):
    """Every path is checked with draws of its own and the longest match wins: the most agreeable draw is picked."""

    def verify(self, tree: TokenTree, law: Law, scores: Scores, noise: Noise) -> Verdict:
        forest, tokens = tree.forest, tree.tokens.tolist()
        leaf, bonus = [], []
        for row, nodes in enumerate(forest.nodes):
            best = (-1, row, 0)
            for end in nodes:
                if forest.children[end]:
                    continue
                node, path = row, forest.path(end)
                for below in [*path[1:], -1]:
                    token = law.choose([node], noise, f"path{forest.local[end]}")[0]
                    if below < 0 or tokens[below] != token:
                        break
                    node = below
                best = max(best, (forest.depths[node], node, token), key=lambda each: each[0])
            leaf.append(best[1])
            bonus.append(best[2])
        return Verdict(leaf, bonus)


class _Late:
    """The law, looked up one node too far down a chain."""

    def __init__(self, law: Law, tree: TokenTree) -> None:
        self._law, self._forest, self.seconds = law, tree.forest, 0.0

    def _down(self, nodes: Sequence[int] | None) -> list[int]:
        children = self._forest.children
        return [next(iter(children[n]), n) for n in (range(len(self._forest)) if nodes is None else nodes)]

    def choose(self, nodes: Sequence[int] | None, noise: Noise, use: str = TARGET) -> list[int]:
        return self._law.choose(nodes, noise, use)

    def probs(self, nodes: Sequence[int] | None) -> Tensor:
        return self._law.probs(self._down(nodes))


class _Argmax:
    """Not noise at all: always the likeliest options."""

    def draw(self, probs: Tensor, k: int, key: Key, *, replace: bool) -> Tensor:
        return probs.topk(k).indices

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        return probs.argmax(-1)

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        return [chance >= 0.5 for chance in accept]


class _Renamed:
    """Noise whose every use goes by one name."""

    def __init__(self, noise: Noise, use: str) -> None:
        self._noise, self._use = noise, use

    def _key(self, key: Key) -> Key:
        return Key(key.rows, key.nodes, key.depths, self._use, key.draw)

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        return self._noise.choose(probs, self._key(key))

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        return self._noise.flip(accept, self._key(key))

    def draw(self, probs: Tensor, k: int, key: Key, *, replace: bool) -> Tensor:
        return self._noise.draw(probs, k, self._key(key), replace=replace)


def _picked(tree: TokenTree, claim: Drawn, nodes: list[int]) -> TokenTree:
    """Only these nodes in this order, the claim carried over as if nothing had been chosen."""
    place = {node: index for index, node in enumerate(nodes)}
    parents = [place.get(tree.forest.parents[node], -1) for node in nodes]
    forest = type(tree.forest).of(parents, tree.forest.num_rows)
    row, below = tuple(claim.row[n] for n in nodes), tuple(claim.parent_row[n] for n in nodes)
    return TokenTree(tree.tokens[nodes], forest, None, replace(claim, row=row, parent_row=below))


class _TargetResidual(Rejection):
    """Draws the residual with the target's noise."""

    def verify(self, tree: TokenTree, law: Law, scores: Scores, noise: Noise) -> Verdict:
        return super().verify(tree, law, scores, _ResidualAsTarget(noise))


class _ResidualAsTarget(_Renamed):
    def __init__(self, noise: Noise) -> None:
        super().__init__(noise, TARGET)

    def _key(self, key: Key) -> Key:
        return Key(key.rows, key.nodes, key.depths, TARGET if key.use == "residual" else key.use, key.draw)


class PositionNoise(EnumeratedNoise):
    """Every use keyed by absolute position alone: met again after a refusal, when its outcome has been looked at."""

    def _names(self, key: Key) -> list[tuple[Branch, tuple[object, ...]]]:
        pairs = zip(super()._names(key), key.rows, key.depths, strict=True)
        return [(branch, (key.use, self._lengths[row] + depth, key.draw)) for (branch, _), row, depth in pairs]


@dataclass(frozen=True)
class Wrong:
    """One known-wrong variant."""

    name: str
    build: Callable[[], Parts]
    noise: type[EnumeratedNoise] = EnumeratedNoise


def variants(target: Table, draft: Table) -> list[Wrong]:
    """Variants whose output law is not the target's."""
    chain, twice = Fixed(2), Fixed(Shape.branching((2,)))

    def wide(kind: type[Honest], **options: bool) -> Honest:
        return kind(draft, width=2, **options)

    return [
        Wrong("argmax claimed as a draw", lambda: Parts(target, ArgmaxClaimed(draft), Rejection(), chain)),
        Wrong("top-k claimed as draws", lambda: Parts(target, TopClaimed(draft), Rejection(), twice)),
        Wrong("dropped after looking", lambda: Parts(target, Dropped(draft), Rejection(), chain)),
        Wrong("siblings re-sorted", lambda: Parts(target, wide(Sorted), Rejection(), twice)),
        Wrong(
            "claimed independent",
            lambda: Parts(target, wide(ClaimedIndependent), Rejection(), twice),
        ),
        Wrong("law off by one", lambda: Parts(target, OffByOne(draft), Rejection(), chain)),
        Wrong("law before temperature", lambda: Parts(target, OtherTemperature(draft), Rejection(), chain)),
        Wrong("coupled but claimed", lambda: Parts(target, Coupled(draft), _TargetResidual(), chain)),
        Wrong("residual forgotten", lambda: Parts(target, Honest(draft), Forgetful(), chain)),
        Wrong("target law off by one", lambda: Parts(target, Honest(draft), LateLaw(), chain)),
        Wrong("draws per path", lambda: Parts(target, wide(Honest), PerPath(), twice)),
        Wrong("noise keyed by position", lambda: Parts(target, ReadsRefused(draft), Rejection(), chain), PositionNoise),
    ]
