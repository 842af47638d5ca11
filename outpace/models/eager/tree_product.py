"""What the products by which recurrent layers read a tree at once have in common: the nodes' paths, and the
convolution before the recurrence.

Letters: m nodes, D size of a hidden state, C channels of the convolution, W its width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer


class NodesOfTree:
    """Nodes of a tree in an order in which parents come first."""

    def __init__(self, parents: Sequence[int]) -> None:
        """`parents` (m,): the place of each node's parent; -1 if it is the token before the tree."""
        self._parents = parents
        ancestors = torch.eye(len(parents), dtype=torch.bool)
        for node, parent in enumerate(parents):
            if parent >= 0:
                ancestors[node] |= ancestors[parent]
        self.ancestors = ancestors  # (m, m) which nodes are on each node's path, itself included
        self._windows: dict[int, Tensor] = {}

    def windows(self, width: int) -> Tensor:  # (m, W) int64
        """For each node the last `width` inputs on its path, oldest first: 0 to `width` - 1 are those before
        the tree, `width` + i that of node i."""
        if width not in self._windows:
            rows = list[list[int]]()
            for node, parent in enumerate(self._parents):
                above = rows[parent] if parent >= 0 else list(range(width))
                rows.append([*above[1:], width + node])
            self._windows[width] = torch.tensor(rows)
        return self._windows[width]

    def decays(self, logarithms: Tensor) -> tuple[Tensor, Tensor]:  # (m, H) -> (H, m), (H, m, m)
        """Products of decays along paths, from the logarithms of the decays that each node applies in each of
        H heads. First (H, m): the logarithm of the product from before the tree to node i. Second (H, m, m):
        at [:, i, j] the product from node j to node i below it; 0 if j is not on the path of i."""
        seen = self.ancestors.to(logarithms.device)
        total = (seen.to(logarithms.dtype) @ logarithms).transpose(0, 1)
        # pairs of nodes that are not on one path are masked before exp, which could overflow for them
        apart = (total[:, :, None] - total[:, None]).masked_fill(~seen, float("-inf"))
        return total, apart.exp()


@dataclass(frozen=True)
class TreeProduct:
    """How layers of one kind read a tree, or the accepted tokens, at once."""

    # how many linear layers of a layer read its input, before all others; 0: a layer of another kind
    num_projections: Callable[[Any], int]
    # the outputs (1, m, D) of the layer at the nodes of a tree, from its inputs (1, m, D) and the states
    # before the tree, which stay as they are
    outputs: Callable[[Any, NodesOfTree, LinearAttentionLayer, Tensor], Tensor]
    # brings the states from before to after m tokens of a text, from what those linear layers gave at them
    follow: Callable[[Any, LinearAttentionLayer, Sequence[Tensor]], None]


def convolved(conv: Any, tree: NodesOfTree, before: LinearAttentionLayer, inputs: Tensor) -> Tensor:
    """The causal convolution (m, C) of each node's path, from the inputs (1, m, C) at the nodes and those
    before the tree."""
    past, width = before.conv_states[0], conv.kernel_size[0]
    assert past is not None
    known = torch.cat((past[0, :, -width:].transpose(0, 1).to(inputs.dtype), inputs[0]))
    windows = known[tree.windows(width).to(inputs.device)]  # (m, W, C)
    sums = (windows * conv.weight[:, 0].transpose(0, 1)).sum(1)
    return sums if conv.bias is None else sums + conv.bias


def follow_convolution(states: LinearAttentionLayer, inputs: Tensor) -> None:  # (1, m, C)
    """Bring the inputs that the convolution keeps from before to after m tokens of a text."""
    past = states.conv_states[0]
    assert past is not None
    past.copy_(torch.cat((past, inputs.transpose(1, 2).to(past.dtype)), -1)[..., -past.shape[-1] :])
