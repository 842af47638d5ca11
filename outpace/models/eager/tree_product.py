"""A tree read by a Mamba 2 layer in one call (STree; Wu et al. 2025): one masked product per head.

The decay of such a layer is a number per head and token, so the output of a node is a sum over its path:

    y_i = exp(s_i) C_i H + sum_j exp(s_i - s_j) dt_j (C_i . B_j) x_j + D x_i

with the state H before the tree, j the nodes from the tree's beginning to i, and s_i the sum of dt_j A over
them. No node has a state of its own. In layers of other kinds (delta rule, Mamba 1) decays are matrices or
differ by channel, and the sum is no product of this form.

Letters: m nodes, H heads, P channels of a head, G groups, S state size, C channels of the convolution, W its
width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from transformers.cache_utils import LinearAttentionLayer

PARTS = ("in_proj", "conv1d", "dt_bias", "A_log", "D", "norm", "out_proj", "act")


def is_mamba2(layer: Any) -> bool:
    """Whether a layer has the parts of Mamba 2, a norm with a gate among them."""
    if not all(hasattr(layer, name) for name in PARTS) or isinstance(layer.norm, nn.Identity):
        return False
    sizes = layer.out_proj.in_features + layer.conv1d.out_channels + len(layer.A_log)
    return bool(layer.in_proj.out_features == sizes)


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


@dataclass(frozen=True, eq=False)
class Read:
    """What a Mamba 2 layer reads at m nodes, by the names of the sum above."""

    values: Tensor  # (m, H, P) x
    keys: Tensor  # (m, H, S) B
    queries: Tensor  # (m, H, S) C
    time: Tensor  # (m, H) dt
    rates: Tensor  # (H,) A


def tree_product(layer: Any, tree: NodesOfTree, before: LinearAttentionLayer, hidden: Tensor) -> Tensor:
    """The outputs (1, m, D) of a Mamba 2 layer at the nodes of a tree, from its inputs (1, m, D) and the
    states before the tree, which stay as they are. Computed in float32, as transformers does."""
    state = before.recurrent_states[0]
    assert state is not None
    gate, *projected = _split(layer, layer.in_proj(hidden))
    read = _read(layer, tree, before, *projected)
    seen = tree.ancestors.to(hidden.device)
    decay = (seen.to(read.time.dtype) @ (read.time * read.rates)).transpose(0, 1)  # (H, m)
    # pairs of nodes that are not on one path are masked before exp, which could overflow for them
    apart = (decay[:, :, None] - decay[:, None]).masked_fill(~seen, float("-inf"))
    weights = apart.exp() * read.time.transpose(0, 1)[:, None]  # (H, m, m)
    weights = weights * torch.einsum("ihk,jhk->hij", read.queries, read.keys)
    sums = torch.einsum("hij,jhp->ihp", weights, read.values)
    from_state = torch.einsum("ihk,hpk->ihp", read.queries, state[0].to(read.queries.dtype))
    sums = sums + from_state * decay.exp().transpose(0, 1)[:, :, None]
    sums = sums + read.values * layer.D.float()[:, None]
    outputs = layer.norm(sums.flatten(1)[None].to(gate.dtype), gate)
    return layer.out_proj(outputs.to(hidden.dtype))


def follow(layer: Any, states: LinearAttentionLayer, projected: Tensor) -> None:
    """Bring the states of a Mamba 2 layer from before to after m tokens of a text, from what its `in_proj`
    gave at them (1, m, ...): the same sum, without outputs."""
    before, past = states.recurrent_states[0], states.conv_states[0]
    assert before is not None and past is not None
    chain = NodesOfTree(range(-1, projected.shape[1] - 1))
    _, inputs, steps = _split(layer, projected)
    read = _read(layer, chain, states, inputs, steps)
    decay = (read.time * read.rates).cumsum(0)  # (m, H)
    weights = (decay[-1] - decay).exp() * read.time
    after = torch.einsum("jh,jhp,jhk->hpk", weights, read.values, read.keys)
    after = after + before[0].to(after.dtype) * decay[-1].exp()[:, None, None]
    before.copy_(after[None])
    past.copy_(torch.cat((past, inputs.transpose(1, 2).to(past.dtype)), -1)[..., -past.shape[-1] :])


def _split(layer: Any, projected: Tensor) -> list[Tensor]:
    """The gate, the inputs of the convolution (1, m, C) and the steps in time (1, m, H) of m tokens."""
    return list(
        projected.split([layer.out_proj.in_features, layer.conv1d.out_channels, len(layer.A_log)], -1)
    )


def _read(layer: Any, tree: NodesOfTree, before: LinearAttentionLayer, inputs: Tensor, steps: Tensor) -> Read:
    past, state = before.conv_states[0], before.recurrent_states[0]
    assert past is not None and state is not None
    heads, size, width = len(layer.A_log), state.shape[-1], layer.conv1d.kernel_size[0]
    inner, channels = layer.out_proj.in_features, layer.conv1d.out_channels
    known = torch.cat((past[0, :, -width:].transpose(0, 1).to(inputs.dtype), inputs[0]))
    windows = known[tree.windows(width).to(inputs.device)]  # (m, W, C)
    convolved = (windows * layer.conv1d.weight[:, 0].transpose(0, 1)).sum(1)
    if layer.conv1d.bias is not None:
        convolved = convolved + layer.conv1d.bias
    groups = (channels - inner) // (2 * size)
    values, keys, queries = layer.act(convolved).float().split([inner, groups * size, groups * size], -1)
    return Read(
        values.unflatten(-1, (heads, -1)),
        keys.unflatten(-1, (groups, size)).repeat_interleave(heads // groups, 1),
        queries.unflatten(-1, (groups, size)).repeat_interleave(heads // groups, 1),
        softplus((steps[0] + layer.dt_bias).float()),
        -layer.A_log.float().exp(),
    )
