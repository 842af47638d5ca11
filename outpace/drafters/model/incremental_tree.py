"""A tree whose nodes a model scores on demand, for drafters that need the logits of nodes of their choice.

Letters: M nodes whose logits are requested, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.grower import Grower
from outpace.drafters.model.grow import Read


class IncrementalTree:
    """A tree below the roots of a context with one node per token sequence; new nodes are scored when the
    logits of one of them are requested."""

    def __init__(self, ctx: Context, read: Read) -> None:
        self._read, self._grower = read, Grower(ctx.roots)
        self._logits: list[Tensor] = []  # (V,) logits of each scored node
        self._children: dict[tuple[int, int], int] = {}

    @property
    def rows(self) -> Sequence[int]:
        """(N,) row of the batch that each node belongs to."""
        return self._grower.rows

    def is_scored(self, node: int) -> bool:
        """Whether the model has read this node."""
        return node < len(self._logits)

    def down(self, node: int, tokens: Sequence[int]) -> int:
        """The node at the end of the path `tokens` below `node`; nodes that are missing on it are added."""
        for token in tokens:
            child = self._children.get((node, token))
            if child is None:
                (child,) = self._grower.add_chosen([node], torch.tensor([token]))
                self._children[node, token] = child
            node = child
        return node

    def logits(self, nodes: Sequence[int]) -> Tensor:  # (M, V)
        """The model's logits after these nodes. If one of them is not scored yet, one forward scores all
        nodes that are not."""
        if max(nodes) >= len(self._logits):
            self._logits += self._read(self._grower.structure())[1].unbind()
        return torch.stack([self._logits[node] for node in nodes])
