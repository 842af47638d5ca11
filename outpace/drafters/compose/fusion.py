"""Fusing two drafts in one tree: retrieved tokens are merged into the tree of a draft model or a draft head
by longest common prefix.

Retrieved tokens are not drawn, so they carry no claim. One that equals a drawn child shares its node: tokens
without a claim are matched with the residual distribution left by the drawn siblings, in which a rejected
token has probability 0, so a node of its own could never be accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.contracts import Context, Draft, Drafter, Plan, Target
from outpace.core.tree import Forest, Shape, TokenTree
from outpace.drafters.compose.combined import Combined
from outpace.drafters.lookup.sources import TextSources
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.dynamic_tree import EAGLE2_DEPTH, eagle2_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import Growth, Read, grow
from outpace.models.heads.head_model import HeadModel

# (context, plan, the drafted tree, the logits at the roots (B, V) that it was drafted from) -> the tree with
# retrieved tokens added
Fuse = Callable[[Context, Plan, TokenTree, Tensor], TokenTree]


class Fusion:
    """A token tree to which branches are added; parents come before their children, and no two added siblings
    have the same token."""

    def __init__(self, tree: TokenTree) -> None:
        self._tree = tree
        self.tokens: list[int] = tree.tokens.tolist()
        self.parents = list(tree.forest.parents)
        # estimated probability that a node is reached: at most its parent's, 1 if unknown
        self.path_probs = [1.0] * len(tree)
        self._below: dict[tuple[int, int], int] = {}
        if tree.confidence is not None:
            draft_probs: list[float] = tree.confidence.exp().tolist()
            for node in range(tree.forest.num_rows, len(tree)):
                self.path_probs[node] = self.path_probs[self.parents[node]] * draft_probs[node]
        for node in range(tree.forest.num_rows, len(tree)):
            self._below.setdefault((self.parents[node], self.tokens[node]), node)

    def merge(
        self, at: int, tokens: Sequence[int], parents: Sequence[int], path_probs: Sequence[float]
    ) -> None:
        """Merge branches below node `at`: `parents` are indices into `tokens`, -1 for `at`; `path_probs` are
        estimated probabilities that the nodes are reached."""
        nodes: list[int] = []
        for token, parent, path_prob in zip(tokens, parents, path_probs, strict=True):
            above = at if parent < 0 else nodes[parent]
            node = self._below.get((above, token))
            if node is None:
                node = self._below[above, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(above)
                self.path_probs.append(path_prob)
            else:
                self.path_probs[node] = max(self.path_probs[node], path_prob)
            nodes.append(node)

    def tree(self, max_nodes: int | None = None) -> TokenTree:
        """The whole tree; with `max_nodes`, in each row all drawn nodes and the other nodes most likely to be
        reached, up to `max_nodes` nodes together."""
        claim, num_rows = self._tree.claim, self._tree.forest.num_rows
        assert isinstance(claim, Drawn | None)
        drawn = [-1] * len(self.tokens)
        if claim is not None:
            drawn[: len(claim.row)] = claim.row
        kept = range(len(self.tokens)) if max_nodes is None else self._most_probable(drawn, max_nodes)
        index_of = {node: index for index, node in enumerate(kept)}
        parents = [index_of[self.parents[node]] if node >= num_rows else -1 for node in kept]
        tokens = torch.tensor([self.tokens[node] for node in kept], device=self._tree.tokens.device)
        if claim is not None:
            claim = replace(claim, row=tuple([drawn[node] for node in kept]))
        return TokenTree(tokens, Forest.of(parents, num_rows), None, claim)

    def _most_probable(self, drawn: Sequence[int], max_nodes: int) -> list[int]:
        num_rows = self._tree.forest.num_rows
        rows, listed = list(range(num_rows)), [list[int]() for _ in range(num_rows)]
        kept = list(range(num_rows))
        left = [max_nodes] * num_rows
        for node in range(num_rows, len(self.tokens)):
            rows.append(row := rows[self.parents[node]])
            if drawn[node] >= 0:  # drawn nodes stay: dropping one by its token makes q of the others wrong
                kept.append(node)
                left[row] -= 1
            else:
                listed[row].append(node)
        for row, nodes in enumerate(listed):
            nodes.sort(key=lambda node: -self.path_probs[node])
            kept += nodes[: max(left[row], 0)]
        return sorted(kept)


@dataclass(frozen=True)
class DraftedTrees:
    """The trees to which retrieved tokens are added: the drafter that grows them, by a function that it is
    given, and their depth."""

    drafter: Callable[[Growth], Drafter]
    growth: Growth
    depth: int

    @staticmethod
    def of(
        target: Target,
        draft: Target | None,
        head: HeadModel | None,
        widths: Sequence[int],
        *,
        sampled: bool,
    ) -> DraftedTrees:
        """Trees of the draft model, of the shape `Shape.branching(widths)`, drawn if `sampled`; or trees of
        the head, as in EAGLE-2. ValueError unless one of both is given, and for `sampled` with a head."""
        if draft is not None and head is None:
            shape = Shape.branching(widths)
            growth = partial(_fixed_shape, shape=shape, sampled=sampled)
            return DraftedTrees(
                lambda fused: DraftModel(draft, sampled=sampled, growth=fused), growth, shape.depth
            )
        if head is None or draft is not None:
            raise ValueError("draft and head are two drafters of the tree: give one of them")
        if sampled:
            raise ValueError("a head drafts its most probable tokens: sampled is an option for draft models")
        return DraftedTrees(
            lambda fused: FeatureDrafter(head, target.vocab, fused, sampled=False), eagle2_tree, EAGLE2_DEPTH
        )


def _fixed_shape(ctx: Context, plan: Plan, read: Read, *, shape: Shape, sampled: bool) -> TokenTree:
    return grow(ctx, replace(plan, shape=shape), read, sampled=sampled, record_probs=True)


class FusedDrafter(Combined):
    """Implementation of core.contracts.Drafter: a draft model's or head's trees, to which `fuse` adds tokens
    retrieved from `sources`."""

    def __init__(self, trees: DraftedTrees, sources: TextSources, fuse: Fuse) -> None:
        self._growth, self._sources, self._fuse = trees.growth, sources, fuse
        self._drafter = trees.drafter(self._grow)
        super().__init__(self._drafter, lookups=[sources])

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        self._sources.update(ctx)
        return self._drafter.propose(ctx, plan)

    def _grow(self, ctx: Context, plan: Plan, read: Read) -> TokenTree:
        root_logits: list[Tensor] = []

        def read_and_record(tree: TokenTree) -> tuple[int, Tensor]:
            first, logits = read(tree)
            if not root_logits:
                root_logits.append(logits)
            return first, logits

        tree = self._growth(ctx, plan, read_and_record)
        return self._fuse(ctx, plan, tree, root_logits[0]) if root_logits else tree
