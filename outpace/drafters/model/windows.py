"""Windows: masks behind a text, in whose places a model gives the distributions of the tokens to draft.

A window is filled in one forward or in several. After each some of its tokens are revealed: later forwards
read them in place of their masks. What a token was drawn from may be claimed if it depends on the text and on
draft tokens before it alone, since verification goes from left to right. That is so for tokens that one
forward reveals together, and for those of several forwards in their order. In any other order a token depends
on later ones too, of which verification tells nothing before it accepts the token; such drafts carry no claim
and are verified by matching.

Letters: A anchors, B rows, k levels, n masks of a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Plan, Target
from outpace.core.device_copies import indices
from outpace.core.grower import DRAFT, Grower
from outpace.core.noise import Key
from outpace.core.tree import TokenTree
from outpace.drafters.model.grow import Growth, Read, chosen_chains
from outpace.drafters.model.look_ahead import LookAhead
from outpace.drafters.model.masks import with_masks
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget
from outpace.sampling.topk import at_least_float32
from outpace.sampling.warp import warp

NEARLY_EQUAL = 1e-5  # difference of the probabilities of adjacent masks that counts as none


@dataclass(frozen=True)
class Window:
    """The tokens that a model reads behind a text while it drafts."""

    size: int  # masks of the longest draft; a row has as many as its draft has tokens
    mask: int  # stands for a token to draft
    end: int | None = None  # stands behind the masks (Cheng et al. 2025, DEER); None: nothing does

    def behind(
        self, tree: TokenTree, anchors: Sequence[int], counts: Sequence[int], most: int
    ) -> tuple[TokenTree, list[int]]:
        """The tree with this window behind its anchors, with `counts` masks each, and for each anchor the
        nodes of its masks (A × `most`), in place of those that it lacks its last one."""
        ids = torch.full((most,), self.mask)
        masked, nodes = with_masks(tree, anchors, ids, counts, end=self.end)
        step = 1 + most  # an anchor and its masks
        return masked, [node for index, node in enumerate(nodes) if index % step]


def reading_windows(draft: Target, window: Window) -> Target:
    """The draft model as it reads windows. ValueError for one that reads chains only."""
    if isinstance(draft, HFTarget):
        return draft.in_windows()
    unknown = {window.mask} if window.end is None else {window.mask, window.end}
    return draft.in_windows(unknown) if isinstance(draft, TableTarget) else draft


class WindowReader:
    """The distributions of one draft whose windows are filled from left to right: implementation of
    drafters.model.grow.Read and drafters.model.best_first.ReadLevels.

    `read` reads every tree anew (`DraftModel(rereads=True)`): the root, or a chain below it, and masks for
    all further tokens of the draft. `ahead` has the number of tokens that each forward reveals: the same
    for shorter drafts, so that a draft does not depend on other rows of its batch."""

    def __init__(self, plan: Plan, read: Read, window: Window, ahead: Sequence[int]) -> None:
        self._depths, self._read, self._window = plan.depth, read, window
        self._look_ahead = LookAhead(self._read_ahead, ahead)

    def __call__(self, tree: TokenTree) -> tuple[int, Tensor]:
        return self._look_ahead(tree)

    def next_levels(self, roots: TokenTree) -> tuple[Tensor, None]:  # (B, k, V)
        """The logits of the k tokens of the longest draft after each root, from one forward; those beyond a
        row's own draft have no meaning. All tokens of the vocabulary, in their order, have logits."""
        return self._read_ahead(roots, range(len(roots)), max(self._depths)), None

    def _read_ahead(self, tree: TokenTree, anchors: Sequence[int], levels: int) -> Tensor:  # (A, k, V)
        forest = tree.forest
        counts = [max(0, self._depths[forest.rows[each]] - forest.depths[each]) for each in anchors]
        most = max(levels, *counts)
        masked, nodes = self._window.behind(tree, anchors, counts, most)
        _, logits = self._read(masked)
        return logits[indices(nodes, logits.device)].view(len(anchors), most, -1)[:, :levels]


def shares(size: int, num_forwards: int) -> tuple[int, ...]:
    """How many of `size` tokens each forward reveals, about as many in each; no more forwards than tokens."""
    num = min(size, num_forwards)
    return tuple(size * (index + 1) // num - size * index // num for index in range(num))


def in_windows(
    ctx: Context, plan: Plan, read: Read, *, growth: Growth, window: Window, num_forwards: int = 1
) -> TokenTree:
    """The tree of another growth, with tokens from windows that `num_forwards` forwards fill from left to
    right. With several forwards it is a chain."""
    return growth(ctx, plan, WindowReader(plan, read, window, shares(window.size, num_forwards)))


# Which masks of a window are replaced by their drawn tokens after a forward. Arguments: the number of the
# forward, from 0, and a value for each of the n masks left. Returns one or more indices among the n.
Order = Callable[[int, Sequence[float]], Sequence[int]]

# The values of all masks that a forward has read. Arguments: their nodes, the share of the masks of the own
# window that is left, and the draft probabilities of the tokens drawn in them, (M,) each. Returns (M,).
Value = Callable[[Sequence[int], Sequence[float], Sequence[float]], Sequence[float]]


def largest(count: int, values: Sequence[float]) -> list[int]:
    """The masks of the largest values; of equal ones the first."""
    return sorted(range(len(values)), key=lambda index: -values[index])[:count]


def in_equal_parts(forward: int, values: Sequence[float], *, num_forwards: int) -> list[int]:
    """About as many masks in each of `num_forwards` forwards."""
    return largest(-(-len(values) // (num_forwards - forward)), values)


def as_many_as_expected(forward: int, values: Sequence[float]) -> list[int]:
    """Of values that are probabilities, the largest, as many as their sum, rounded down; at least one (Chen
    et al. 2025, dUltra). Of nearly equal ones the first: which of them is larger may depend on the other rows
    of a batch, by rounding."""
    ordered = [value - NEARLY_EQUAL * index for index, value in enumerate(values)]
    return largest(max(1, floor(sum(values))), ordered)


def most_confident(
    nodes: Sequence[int], shares: Sequence[float], draft_probs: Sequence[float]
) -> Sequence[float]:
    """The draft probabilities."""
    return draft_probs


# a draft token, and the draft distribution q (V,) that it was drawn from
Revealed = tuple[int, Tensor]


def in_any_order(
    ctx: Context, plan: Plan, read: Read, *, window: Window, order: Order, value: Value = most_confident
) -> TokenTree:
    """Draft a chain by filling the masks of a window in the order that `order` chooses. The chain carries no
    claim (no q), so it is verified by matching: a token may depend on those behind it. Penalties and other
    changes of logits are left to verification, as the text before a token may not be known yet."""
    revealed = reveal(ctx, plan, read, window=window, order=order, value=value)
    grower = Grower(ctx.roots)
    chosen_chains(grower, [[token for token, _ in of_row] for of_row in revealed])
    return grower.tree()


def reveal(
    ctx: Context, plan: Plan, read: Read, *, window: Window, order: Order, value: Value = most_confident
) -> list[list[Revealed]]:
    """The tokens of each row's window in the order of the text. Every forward draws a token into each mask
    that is left, and keeps those that `order` chooses by their values, until no mask is left."""
    roots, most = TokenTree.roots(ctx.roots), max(plan.depth)
    masked, nodes = window.behind(roots, range(len(roots)), plan.depth, most)
    found: list[dict[int, Revealed]] = [{} for _ in plan.depth]
    for forward in range(most):
        masks = [
            (row, place)
            for row, depth in enumerate(plan.depth)
            for place in range(depth)
            if place not in found[row]
        ]
        if not masks:
            break
        _, logits = read(masked)
        rows, places = [row for row, _ in masks], [1 + place for _, place in masks]
        at = [nodes[row * most + place] for row, place in masks]
        logits = logits[indices(at, logits.device)]
        q = warp(logits, [ctx.sampling[row] for row in rows])
        drawn = ctx.noise.choose(q, Key(rows, places, places, DRAFT, forward))
        draft_probs = at_least_float32(logits).softmax(-1).gather(1, drawn[:, None])[:, 0].tolist()
        values = value(at, [1 - len(found[row]) / plan.depth[row] for row in rows], draft_probs)
        tokens, read_next = drawn.tolist(), masked.tokens.clone()
        for row in dict.fromkeys(rows):
            own = [index for index, each in enumerate(rows) if each == row]
            for chosen in order(forward, [values[index] for index in own]):
                index = own[chosen]
                found[row][masks[index][1]] = tokens[index], q[index]
                read_next[at[index]] = tokens[index]
        masked = TokenTree(read_next, masked.forest)
    return [[of_row[place] for place in sorted(of_row)] for of_row in found]
