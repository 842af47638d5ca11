"""Mutants of drafters: mistakes in published code, each a small change after which q recorded in the tree's
claim is not the distribution of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class CorrectDrafter:
    """The correct drafter that the mutants subclass: draws `width` children per node from a table model's
    distribution, with or without replacement."""

    want = Want()
    claims: tuple[type[Claim], ...] = (Drawn,)
    learns_across_rows = drafts_across_rows = False

    def __init__(self, model: TableTarget, *, width: int = 1, replace: bool = False) -> None:
        self.model, self.width, self.replace = model, width, replace

    def distribution(self, ctx: Context, row: int, path: Sequence[int]) -> Tensor:  # (V,)
        """The draft distribution q after the row's committed tokens and this path of draft tokens."""
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
        """Does nothing: a table model has no state."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state per slot."""


class ArgmaxClaimed(CorrectDrafter):
    """Mutant: drafts the most probable token, recorded as drawn from q."""

    def children(self, grower: Grower, at: list[int], q: Tensor, ctx: Context) -> list[int]:
        return grower.add_drawn(at, q, 1, MostProbable(), replace=False)


class TopClaimed(CorrectDrafter):
    """Mutant: drafts the two most probable tokens, recorded as drawn from q with or without replacement."""

    def children(self, grower: Grower, at: list[int], q: Tensor, ctx: Context) -> list[int]:
        return grower.add_drawn(at, q, 2, MostProbable(), replace=self.replace)


class Dropped(CorrectDrafter):
    """Mutant: drops drawn tokens of draft probability at most 0.3 but keeps the recorded q, which is not the
    distribution of the tokens that remain."""

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


class Reranked(CorrectDrafter):
    """Mutant: keeps the three drawn tokens with the most probable paths, as trees of chosen tokens do, but
    does not change the recorded q, which is not the distribution of these tokens."""

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        claim, forest = tree.claim, tree.forest
        if not isinstance(claim, Drawn):
            return tree
        tokens, paths = tree.tokens.tolist(), [1.0] * forest.num_rows
        for node in range(forest.num_rows, len(tree)):
            paths.append(paths[forest.parents[node]] * float(claim.q[claim.row[node], tokens[node]]))
        best = [sorted(nodes[1:], key=lambda node: -paths[node])[:3] for nodes in forest.nodes]
        return picked(tree, claim, [*range(forest.num_rows), *sorted(node for row in best for node in row)])


class Sorted(CorrectDrafter):
    """Mutant: sorts siblings drawn without replacement by falling draft probability, but verification needs
    drawing order."""

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

    def rank(self, prob: float, token: int) -> float:
        return -prob


class Numbered(Sorted):
    """Mutant: sorts siblings drawn without replacement by token id, but verification needs drawing order."""

    def rank(self, prob: float, token: int) -> float:
        return token


class ClaimedIndependent(CorrectDrafter):
    """Mutant: siblings drawn without replacement, recorded as drawn with replacement."""

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        claim = tree.claim
        if not isinstance(claim, Drawn):
            return tree
        return TokenTree(tree.tokens, tree.forest, None, replace(claim, replace=(True,) * len(claim.replace)))


class OffByOne(CorrectDrafter):
    """Mutant: the q recorded for nodes at depth 1 is the draft distribution of the previous position."""

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


class OtherTemperature(CorrectDrafter):
    """Mutant: draws from q after temperature and records q at another temperature (its normalised square
    root)."""

    def finish(self, tree: TokenTree, ctx: Context) -> TokenTree:
        claim = tree.claim
        if not isinstance(claim, Drawn):
            return tree
        return TokenTree(
            tree.tokens, tree.forest, None, replace(claim, q=claim.q.sqrt() / claim.q.sqrt().sum(-1, True))
        )


class Coupled(CorrectDrafter):
    """Mutant: draws draft tokens with the noise keys of the target's tokens, though draft noise must be
    independent; biased where the residual is drawn with the same keys."""

    def children(self, grower: Grower, at: list[int], q: Tensor, ctx: Context) -> list[int]:
        return grower.add_drawn(at, q, 1, as_target(ctx.noise, DRAFT), replace=False)


class ReadsRejected(CorrectDrafter):
    """Drafter whose distribution depends on the last rejected token: exact, unless noise is keyed by position
    alone and therefore reused after a rejection."""

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


class MostProbable:
    """Deterministic stand-in for core.noise.Noise: always the most probable options."""

    def draw(self, probs: Tensor, k: int, key: Key, *, replace: bool) -> Tensor:
        return probs.topk(k).indices

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        return probs.argmax(-1)

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        return [probability >= 0.5 for probability in accept]


def as_target(noise: Noise, *uses: str) -> Noise:
    """Noise in which keys of these uses are replaced by the keys of the target's tokens."""
    return Rekeyed(
        noise, lambda key: Key(key.rows, key.nodes, key.depths, TARGET, key.draw) if key.use in uses else key
    )


def reclaimed(tree: TokenTree, q_of: Callable[[Drawn, int], Tensor | None]) -> TokenTree:
    """A copy of a tree in which the draft probabilities q that are recorded for some nodes are replaced.
    `q_of`, called with the claim and a node, returns the node's new q, or None to keep the old one. A tree
    without recorded probabilities is returned as it is."""
    if not isinstance(claim := tree.claim, Drawn):
        return tree
    q = claim.q.clone()
    for node, row in enumerate(claim.row):
        if row >= 0 and (other := q_of(claim, node)) is not None:
            q[row] = other
    return replace(tree, claim=replace(claim, q=q))


def picked(tree: TokenTree, claim: Drawn, nodes: list[int]) -> TokenTree:
    """The tree with only these nodes, in this order; q in its claim is not changed, though the selection
    changes the distribution of the tokens."""
    index_of = {node: index for index, node in enumerate(nodes)}
    parents = [index_of.get(tree.forest.parents[node], -1) for node in nodes]
    forest = type(tree.forest).of(parents, tree.forest.num_rows)
    return TokenTree(
        tree.tokens[nodes], forest, None, replace(claim, row=tuple(claim.row[n] for n in nodes), draws=None)
    )
