"""Looking ahead: a draft tree from a model that gives distributions of several next tokens in one forward.

Such a model is read at some levels of a tree only, at its *anchors*. A node between two of them has the
distribution that was read at its anchor, for its distance from it: this does not depend on the tokens
between. What is drawn from it may be claimed, as q of a level is known before any token of the draft.

Letters: A anchors, K logits, k levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from outpace.core.device_copies import indices
from outpace.core.tree import TokenTree

# (tree, its anchors (A,), number of levels k) -> (A, k, K): the logits of the next k tokens after each
# anchor. One call reads all anchors together, in one forward at most
ReadAhead = Callable[[TokenTree, Sequence[int], int], Tensor]


class LookAhead:
    """Implementation of drafters.model.grow.Read: reads at the roots, and then after every `ahead` levels.

    `ahead` has the number of levels of each forward: (1, 1) is a model with one distribution per forward,
    (5,) one forward for five levels."""

    def __init__(self, read: ReadAhead, ahead: Sequence[int]) -> None:
        """ValueError for a forward over no levels."""
        if not ahead or min(ahead) < 1:
            raise ValueError(
                f"forwards over {tuple(ahead)} levels: each gives the logits of one level or more"
            )
        self._read, self._ahead = read, tuple(ahead)
        # of the anchors of each forward, and of the deepest leaves
        self._depths = [0, *accumulate(self._ahead)]
        self._of_anchor: dict[int, tuple[int, int]] = {}  # anchor -> (its first row in `_logits`, its depth)
        self._logits: list[Tensor] = []  # (A × k, K) of each forward
        self._rows = self._next = 0  # in `_logits`, and the first node that is new to the next call

    def __call__(self, tree: TokenTree) -> tuple[int, Tensor]:
        """The first new node, and the logits after it and all later nodes. ValueError for a node so deep that
        no forward looks beyond it."""
        forest, first = tree.forest, self._next
        for forward, depth in enumerate(self._depths[:-1]):
            anchors = [node for node in range(first, len(tree)) if forest.depths[node] == depth]
            if anchors:
                self._take(tree, anchors, depth, self._ahead[forward])
        rows = [self._row(tree, node) for node in range(first, len(tree))]
        self._next = len(tree)
        logits = self._logits[0] if len(self._logits) == 1 else torch.cat(self._logits)
        self._logits = [logits]
        return first, logits[indices(rows, logits.device)]

    def _take(self, tree: TokenTree, anchors: Sequence[int], depth: int, levels: int) -> None:
        logits = self._read(tree, anchors, levels)
        self._logits.append(logits.flatten(0, 1))
        for anchor in anchors:
            self._of_anchor[anchor] = self._rows, depth
            self._rows += levels

    def _row(self, tree: TokenTree, node: int) -> int:
        """The row of the logits after a node."""
        forest, anchor = tree.forest, node
        depth = forest.depths[node]
        if depth >= self._depths[-1]:
            raise ValueError(
                f"no forward looks beyond a node of depth {depth}: draft {self._depths[-1]} tokens or fewer"
            )
        while anchor not in self._of_anchor:
            anchor = forest.parents[anchor]
        row, above = self._of_anchor[anchor]
        return row + depth - above
