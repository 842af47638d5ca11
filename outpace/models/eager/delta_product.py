"""A tree read by a layer with the gated delta rule (Qwen3.5, Qwen3-Next) in one call.

Such a layer writes at each token what its key does not yet give, and its decay is a number per head:

    S_i = a_i S_p + k_i u_i    u_i = b_i (v_i - k_i a_i S_p)    y_i = q_i S_i

with p the parent of i. Along a path that is, with the state S before the tree, j the nodes above i, and s_i
the sum of log a_j from the tree's beginning to i,

    u_i + sum_j b_i exp(s_i - s_j) (k_i . k_j) u_j = b_i (v_i - exp(s_i) k_i S)
    y_i = exp(s_i) q_i S + sum_j exp(s_i - s_j) (q_i . k_j) u_j,  j up to i itself

Parents come before their children, so the first line, for all nodes of a tree, is one triangular system per
head: the WY form by which Yang et al. (2024, Parallelizing Linear Transformers with the Delta Rule) read the
tokens of a text together, with the tree's mask in place of the causal one. No node has a state of its own.

Letters: m nodes, H heads, G heads of keys, K size of a key, V size of a value, C channels of the convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from transformers.activations import ACT2FN
from transformers.cache_utils import LinearAttentionLayer

from outpace.models.eager.tree_product import NodesOfTree, TreeProduct, convolved, follow_convolution

# names of the linear layers that read a layer's input, in the order in which transformers' code calls them:
# in a layer of Qwen3.5, and in one of Qwen3-Next
PROJECTIONS = (("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"), ("in_proj_qkvz", "in_proj_ba"))
PARTS = ("conv1d", "dt_bias", "A_log", "norm", "out_proj", "activation", "head_k_dim", "head_v_dim")
EPSILON = 1e-6  # of the norm of queries and keys


def _projections(layer: Any) -> tuple[str, ...]:
    """Those of PROJECTIONS that this layer has; () for a layer of another kind."""
    if not all(hasattr(layer, name) for name in PARTS):
        return ()
    for names in PROJECTIONS:
        if all(isinstance(getattr(layer, name, None), nn.Linear) for name in names):
            return names
    return ()


@dataclass(frozen=True, eq=False)
class Read:
    """What such a layer reads at m nodes, by the names of the sums above; heads come first."""

    queries: Tensor  # (H, m, K)
    keys: Tensor  # (H, m, K)
    values: Tensor  # (H, m, V)
    rates: Tensor  # (H, m, 1) b
    state: Tensor  # (H, K, V) S
    decays: Tensor  # (H, m, 1) exp(s)
    between: Tensor  # (H, m, m) exp(s_i - s_j); 0 for nodes that are not on one path

    @property
    def written(self) -> Tensor:  # (H, m, V)
        """u: what each node adds to the state at its key, from the triangular system."""
        system = self.rates * (self.keys @ self.keys.transpose(1, 2)) * self.between
        given = self.rates * (self.values - self.decays * (self.keys @ self.state))
        return torch.linalg.solve_triangular(system, given, upper=False, unitriangular=True)


def _outputs(layer: Any, tree: NodesOfTree, before: LinearAttentionLayer, hidden: Tensor) -> Tensor:
    """Computed in float32, as transformers does."""
    inputs, gate, *numbers = _split(layer, [getattr(layer, name)(hidden) for name in _projections(layer)])
    read = _read(layer, tree, before, inputs, *numbers)
    weights = (read.queries @ read.keys.transpose(1, 2)) * read.between
    sums = read.decays * (read.queries @ read.state) + weights @ read.written
    sums = sums.transpose(0, 1).reshape(-1, layer.head_v_dim).to(inputs.dtype)
    outputs = layer.norm(sums, gate.reshape(-1, layer.head_v_dim))
    return layer.out_proj(outputs.reshape(1, hidden.shape[1], -1))


def _follow(layer: Any, states: LinearAttentionLayer, projected: Sequence[Tensor]) -> None:
    before = states.recurrent_states[0]
    assert before is not None
    inputs, _, *numbers = _split(layer, projected)
    chain = NodesOfTree(range(-1, inputs.shape[1] - 1))
    read = _read(layer, chain, states, inputs, *numbers)
    to_end = read.between[:, -1, :, None]  # (H, m, 1)
    after = read.decays[:, -1:] * read.state + (to_end * read.keys).transpose(1, 2) @ read.written
    before.copy_(after[None])
    follow_convolution(states, inputs)


def _split(layer: Any, projected: Sequence[Tensor]) -> Sequence[Tensor]:
    """The inputs of the convolution (1, m, C), the gate, and two numbers per head (1, m, H): the logit of b,
    and what the decay is computed from."""
    if len(projected) == 4:
        return projected
    *parts, gate, rates, steps = layer.fix_query_key_value_ordering(*projected)
    return torch.cat([part.flatten(2) for part in parts], -1), gate, rates, steps


def _read(
    layer: Any, tree: NodesOfTree, before: LinearAttentionLayer, inputs: Tensor, rates: Tensor, steps: Tensor
) -> Read:
    state = before.recurrent_states[0]
    assert state is not None
    heads = len(layer.A_log)
    of_values = heads * layer.head_v_dim
    of_keys = (inputs.shape[-1] - of_values) // 2
    read = ACT2FN[layer.activation](convolved(layer.conv1d, tree, before, inputs)).float()
    queries, keys, values = read.split([of_keys, of_keys, of_values], -1)
    queries, keys = (_normed(each.unflatten(-1, (-1, layer.head_k_dim)), heads) for each in (queries, keys))
    logarithms = -layer.A_log.float().exp() * softplus(steps[0].float() + layer.dt_bias)
    total, between = tree.decays(logarithms)
    return Read(
        queries * layer.head_k_dim**-0.5,
        keys,
        values.unflatten(-1, (heads, -1)).transpose(0, 1),
        rates[0].sigmoid().float().transpose(0, 1)[:, :, None],
        state[0].to(read.dtype),
        total.exp()[:, :, None],
        between,
    )


def _normed(vectors: Tensor, heads: int) -> Tensor:  # (m, G, K) -> (H, m, K)
    """Vectors of length one; each head of keys serves consecutive heads of values."""
    vectors = vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True) + EPSILON)
    return vectors.repeat_interleave(heads // vectors.shape[1], 1).transpose(0, 1)


DELTA_RULE = TreeProduct(lambda layer: len(_projections(layer)), _outputs, _follow)
