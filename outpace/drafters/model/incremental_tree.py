"""A tree that a model reads piece by piece, at whichever nodes are asked about: for drafters that look
around.

Letters: M nodes asked about, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.grower import Grower
from outpace.drafters.model.grow import Read


class IncrementalTree:
    """Nodes below the roots of a context, each of them one text; what was not read yet is read when asked
    about."""

    def __init__(self, ctx: Context, read: Read) -> None:
        self._read, self._grower = read, Grower(ctx.roots)
        self._logits: list[Tensor] = []  # of every node that was read
        self._children: dict[tuple[int, int], int] = {}

    @property
    def rows(self) -> Sequence[int]:
        """The row of each node."""
        return self._grower.rows

    def down(self, node: int, tokens: Sequence[int]) -> int:
        """The node that these tokens lead to."""
        for token in tokens:
            child = self._children.get((node, token))
            if child is None:
                (child,) = self._grower.add_chosen([node], torch.tensor([token]))
                self._children[node, token] = child
            node = child
        return node

    def logits(self, nodes: Sequence[int]) -> Tensor:  # (M, V)
        """What the model says after these nodes."""
        if max(nodes) >= len(self._logits):
            self._logits += self._read(self._grower.structure())[1].unbind()
        return torch.stack([self._logits[node] for node in nodes])
