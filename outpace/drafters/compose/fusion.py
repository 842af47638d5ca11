"""Two ways of drafting in one tree: what was found in text, merged into what a model drafted by longest
common prefix.

Found tokens are chosen, so they carry no claim. One that equals a drawn child shares its node: chosen
siblings are verified by matching what the drawn ones left, and a drawn token that was refused leaves nothing
of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.contracts import Context, Draft, Plan, Step, Target
from outpace.core.tree import Forest, Shape, TokenTree
from outpace.drafters.lookup.sources import TextSources
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import Read, grow

# (context, plan, the model's tree, its logits at the roots (B, V)) -> the tree with what was found
Fuse = Callable[[Context, Plan, TokenTree, Tensor], TokenTree]


class Fusion:
    """A tree to which paths are added; parents come before their children, and no two siblings added are
    equal."""

    def __init__(self, tree: TokenTree) -> None:
        self._tree = tree
        self.tokens: list[int] = tree.tokens.tolist()
        self.parents = list(tree.forest.parents)
        self.reach = [1.0] * len(
            tree
        )  # chance that a node is reached, as far as anybody knows; falls along paths
        self._below: dict[tuple[int, int], int] = {}
        if tree.confidence is not None:
            beliefs: list[float] = tree.confidence.exp().tolist()
            for node in range(tree.forest.num_rows, len(tree)):
                self.reach[node] = self.reach[self.parents[node]] * beliefs[node]
        for node in range(tree.forest.num_rows, len(tree)):
            self._below.setdefault((self.parents[node], self.tokens[node]), node)

    def merge(self, at: int, tokens: Sequence[int], parents: Sequence[int], reach: Sequence[float]) -> None:
        """Merge branches below a node: parents are places in `tokens`, -1 for the node."""
        nodes: list[int] = []
        for token, parent, chance in zip(tokens, parents, reach, strict=True):
            above = at if parent < 0 else nodes[parent]
            node = self._below.get((above, token))
            if node is None:
                node = self._below[above, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(above)
                self.reach.append(chance)
            else:
                self.reach[node] = max(self.reach[node], chance)
            nodes.append(node)

    def tree(self, most: int | None = None) -> TokenTree:
        """All of it, or in each row the `most` nodes that are reached most likely and all that were drawn."""
        claim, num_rows = self._tree.claim, self._tree.forest.num_rows
        assert isinstance(claim, Drawn | None)
        drawn = [-1] * len(self.tokens)
        if claim is not None:
            drawn[: len(claim.row)] = claim.row
        kept = range(len(self.tokens)) if most is None else self._likeliest(drawn, most)
        place = {node: index for index, node in enumerate(kept)}
        parents = [place[self.parents[node]] if node >= num_rows else -1 for node in kept]
        tokens = torch.tensor([self.tokens[node] for node in kept], device=self._tree.tokens.device)
        if claim is not None:
            claim = replace(claim, row=tuple([drawn[node] for node in kept]))
        return TokenTree(tokens, Forest.of(parents, num_rows), None, claim)

    def _likeliest(self, drawn: Sequence[int], most: int) -> list[int]:
        num_rows = self._tree.forest.num_rows
        rows, listed = list(range(num_rows)), [list[int]() for _ in range(num_rows)]
        kept = list(range(num_rows))
        left = [most] * num_rows
        for node in range(num_rows, len(self.tokens)):
            rows.append(row := rows[self.parents[node]])
            if drawn[node] >= 0:  # dropping it for its token would make a false claim of the others
                kept.append(node)
                left[row] -= 1
            else:
                listed[row].append(node)
        for row, nodes in enumerate(listed):
            nodes.sort(key=lambda node: -self.reach[node])
            kept += nodes[: max(left[row], 0)]
        return sorted(kept)


class Fused:
    """core.contracts.Drafter: a model's tree of a given shape, and what `fuse` adds to it."""

    def __init__(
        self, model: Target, shape: Shape, sources: TextSources, fuse: Fuse, *, sampled: bool = False
    ) -> None:
        self._shape, self._sources, self._fuse, self._sampled = shape, sources, fuse, sampled
        self._model = DraftModel(model, sampled=sampled, growth=self._grow)
        self.want = self._model.want
        self.claims: tuple[type[Claim], ...] = self._model.claims
        self.learns_across_rows, self.drafts_across_rows = sources.learns_across_rows, False

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        self._sources.attend(ctx)
        return self._model.propose(ctx, plan)

    def _grow(self, ctx: Context, plan: Plan, read: Read) -> TokenTree:
        heard: list[Tensor] = []

        def listening(tree: TokenTree) -> tuple[int, Tensor]:
            first, logits = read(tree)
            if not heard:
                heard.append(logits)
            return first, logits

        tree = grow(ctx, replace(plan, shape=self._shape), listening, sampled=self._sampled, beliefs=True)
        return self._fuse(ctx, plan, tree, heard[0]) if heard else tree

    def observe(self, step: Step) -> None:
        self._sources.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        self._sources.release(slots)
        self._model.release(slots)
