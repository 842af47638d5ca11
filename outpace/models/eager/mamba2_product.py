"""A tree read by a Mamba 2 layer in one call (STree; Wu et al. 2025): one masked product per head.

The decay of such a layer is a number per head and token, so the output of a node is a sum over its path:

    y_i = exp(s_i) C_i H + sum_j exp(s_i - s_j) dt_j (C_i . B_j) x_j + D x_i

with the state H before the tree, j the nodes from the tree's beginning to i, and s_i the sum of dt_j A over
them. No node has a state of its own. In Mamba 1 decays differ by channel, and the sum is no product of this
form.

Letters: m nodes, H heads, P channels of a head, G groups, S state size, C channels of the convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from transformers.cache_utils import LinearAttentionLayer

from outpace.models.eager.tree_product import NodesOfTree, TreeProduct, convolved, follow_convolution

PARTS = ("in_proj", "conv1d", "dt_bias", "A_log", "D", "norm", "out_proj", "act")


def _num_projections(layer: Any) -> int:
    """1 for a layer with the parts of Mamba 2, a norm with a gate among them, and 0 for any other."""
    if not all(hasattr(layer, name) for name in PARTS) or isinstance(layer.norm, nn.Identity):
        return 0
    sizes = layer.out_proj.in_features + layer.conv1d.out_channels + len(layer.A_log)
    return int(layer.in_proj.out_features == sizes)


@dataclass(frozen=True, eq=False)
class Read:
    """What a Mamba 2 layer reads at m nodes, by the names of the sum above."""

    values: Tensor  # (m, H, P) x
    keys: Tensor  # (m, H, S) B
    queries: Tensor  # (m, H, S) C
    time: Tensor  # (m, H) dt
    rates: Tensor  # (H,) A


def _outputs(layer: Any, tree: NodesOfTree, before: LinearAttentionLayer, hidden: Tensor) -> Tensor:
    """Computed in float32, as transformers does."""
    state = before.recurrent_states[0]
    assert state is not None
    gate, *projected = _split(layer, layer.in_proj(hidden))
    read = _read(layer, tree, before, *projected)
    decay, weights = tree.decays(read.time * read.rates)
    weights = weights * read.time.transpose(0, 1)[:, None]  # (H, m, m)
    weights = weights * torch.einsum("ihk,jhk->hij", read.queries, read.keys)
    sums = torch.einsum("hij,jhp->ihp", weights, read.values)
    from_state = torch.einsum("ihk,hpk->ihp", read.queries, state[0].to(read.queries.dtype))
    sums = sums + from_state * decay.exp().transpose(0, 1)[:, :, None]
    sums = sums + read.values * layer.D.float()[:, None]
    outputs = layer.norm(sums.flatten(1)[None].to(gate.dtype), gate)
    return layer.out_proj(outputs.to(hidden.dtype))


def _follow(layer: Any, states: LinearAttentionLayer, projected: Sequence[Tensor]) -> None:
    """The same sum, without outputs."""
    before = states.recurrent_states[0]
    assert before is not None
    [output] = projected
    chain = NodesOfTree(range(-1, output.shape[1] - 1))
    _, inputs, steps = _split(layer, output)
    read = _read(layer, chain, states, inputs, steps)
    decay = (read.time * read.rates).cumsum(0)  # (m, H)
    weights = (decay[-1] - decay).exp() * read.time
    after = torch.einsum("jh,jhp,jhk->hpk", weights, read.values, read.keys)
    after = after + before[0].to(after.dtype) * decay[-1].exp()[:, None, None]
    before.copy_(after[None])
    follow_convolution(states, inputs)


def _split(layer: Any, projected: Tensor) -> list[Tensor]:
    """The gate, the inputs of the convolution (1, m, C) and the steps in time (1, m, H) of m tokens."""
    return list(
        projected.split([layer.out_proj.in_features, layer.conv1d.out_channels, len(layer.A_log)], -1)
    )


def _read(layer: Any, tree: NodesOfTree, before: LinearAttentionLayer, inputs: Tensor, steps: Tensor) -> Read:
    state = before.recurrent_states[0]
    assert state is not None
    heads, size = len(layer.A_log), state.shape[-1]
    inner, channels = layer.out_proj.in_features, layer.conv1d.out_channels
    groups = (channels - inner) // (2 * size)
    read = layer.act(convolved(layer.conv1d, tree, before, inputs)).float()
    values, keys, queries = read.split([inner, groups * size, groups * size], -1)
    return Read(
        values.unflatten(-1, (heads, -1)),
        keys.unflatten(-1, (groups, size)).repeat_interleave(heads // groups, 1),
        queries.unflatten(-1, (groups, size)).repeat_interleave(heads // groups, 1),
        softplus((steps[0] + layer.dt_bias).float()),
        -layer.A_log.float().exp(),
    )


MAMBA2 = TreeProduct(_num_projections, _outputs, _follow)
