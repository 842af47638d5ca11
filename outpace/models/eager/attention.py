"""The attention and attention mask functions registered with transformers: each row of the batch attends to
the keys and values of its own slot.

In forwards that have none of our caches, both behave like transformers' own functions.

Letters: N tokens of all rows, n tokens of one row, T cache positions, H query heads, K key heads, D head
size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from outpace.models.eager.forward_inputs import RowMask, RowMasks
from outpace.models.eager.own_inputs import OwnInputs
from outpace.models.eager.padded_attention import is_worth_padding, padded_attention
from outpace.models.eager.probe import ProbeCache

# names registered with transformers; they differ only in the masks of forwards without our caches
FUSED, EAGER = ("outpace_tree", "outpace_tree_eager")
# query heads per key head from which, and tokens up to which, they are folded into one head
FEW, MANY = (4, 8)


def tree_mask(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Make the attention mask function, which transformers calls once per layer type in a forward. `usual`
    computes the masks of forwards without our caches."""

    def mask(*, kv_offset: Any, mask_function: Any, dtype: torch.dtype, device: Any, **rest: Any) -> Any:
        if not isinstance(kv_offset, OwnInputs):
            return usual(kv_offset=kv_offset, mask_function=mask_function, dtype=dtype, device=device, **rest)
        # only masks that transformers may skip are plain sliding windows or chunks of `local_size` tokens
        simple = rest.get("allow_is_causal_skip", False) and not rest.get("use_vmap", False)
        reach = rest.get("local_size") if simple else None
        return kv_offset.attention_mask(mask_function, reach, dtype, device)

    return mask


def tree_attention(
    module: nn.Module,
    query: Tensor,  # (1, H, N, D)
    key: Any,  # (1, K, T, D); for several rows a tuple with one such tensor per row
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **rest: Any,
) -> tuple[Tensor, Tensor | None]:  # (1, N, H, D), and in forwards without our caches attention weights
    """Attention of each row's tokens to the keys and values of that row."""
    if not isinstance(attention_mask, RowMasks):
        if isinstance(probe := getattr(attention_mask, "probe", None), ProbeCache):
            if probe.tuples:
                (key,), (value,) = key, value
            probe.attend(key, value)
        if softcap is None and s_aux is None:
            return sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **rest
            )
        return explicit_attention(query, key, value, attention_mask, scaling, softcap, s_aux)
    inputs, rows = attention_mask.inputs, attention_mask.rows
    eager = softcap is not None or s_aux is not None or getattr(module, "layer_idx", None) in inputs.attention
    if len(rows) == 1:
        if eager:
            return _row_explicit_attention(
                module, query, key, value, attention_mask, 0, scaling, softcap, s_aux
            ), None
        return fused_attention(query, key, value, rows[0], scaling), None
    if not eager and is_worth_padding(attention_mask, query.device):
        return padded_attention(query, key, value, attention_mask, scaling), None
    outputs, at = [], 0
    for index, (row, row_inputs) in enumerate(zip(rows, inputs.rows, strict=True)):
        end = at + row_inputs.end - row_inputs.start
        part = query[:, :, at:end]
        if eager:
            outputs.append(
                _row_explicit_attention(
                    module, part, key[index], value[index], attention_mask, index, scaling, softcap, s_aux
                )
            )
        else:
            outputs.append(fused_attention(part, key[index], value[index], row, scaling))
        at = end
    return torch.cat(outputs, dim=1), None


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, row: RowMask, scaling: float | None
) -> Tensor:  # (1, n, H, D)
    """Attention of one row by torch's scaled_dot_product_attention."""
    if row.low:
        key, value = key[:, :, row.low :], value[:, :, row.low :]
    _, heads, num_tokens, size = query.shape
    groups = heads // key.shape[1]
    if num_tokens == 1 or (groups >= FEW and num_tokens <= MANY):
        # the query heads of one key head become queries of one head: keys are loaded once, and the kernel is
        # slow with a single query
        folded = query.reshape(1, -1, groups * num_tokens, size)
        if groups == 1 and query.dtype != torch.float32 and query.device.type == "cpu":
            folded = folded.expand(-1, -1, 2, -1)  # two equal queries are faster than one
        output = scaled_dot_product_attention(
            folded, key, value, attn_mask=row.folded(groups, query.device), scale=scaling
        )
        output = output[:, :, : groups * num_tokens]
        return output.reshape(1, heads, num_tokens, -1).transpose(1, 2).contiguous()
    mask = row.on(query.device)
    if groups == 1 or mask is None or query.device.type == "cpu":
        output = scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=row.is_causal, scale=scaling, enable_gqa=groups > 1
        )
        return output.transpose(1, 2).contiguous()
    # on a GPU no fused kernel supports grouped heads with a mask: key heads become the batch dimension,
    # expanded over their query heads without a copy (stride 0)
    output = scaled_dot_product_attention(
        query.view(-1, groups, num_tokens, size),
        key.transpose(0, 1).expand(-1, groups, -1, -1),
        value.transpose(0, 1).expand(-1, groups, -1, -1),
        attn_mask=mask,
        scale=scaling,
    )
    return output.reshape(1, heads, num_tokens, -1).transpose(1, 2).contiguous()


def _row_explicit_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masks: RowMasks,
    index: int,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:  # (1, n, H, D)
    """Attention of one row with explicit weights, for features that fused kernels lack: soft caps, sinks,
    weights as output. Weights of requested layers are appended to `masks.inputs.weights`."""
    row, row_inputs = masks.rows[index], masks.inputs.rows[index]
    mask = row.additive(row_inputs, query.dtype, query.device)
    output, weights = explicit_attention(query, key, value, mask, scaling, softcap, sinks)
    layer = getattr(module, "layer_idx", None)
    if layer in masks.inputs.attention:
        masks.inputs.weights.setdefault(layer, []).append(weights[0])
    return output


def explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:  # (1, n, H, D), (1, H, n, T)
    """Attention without a fused kernel; returns the output and the attention weights."""
    _, heads, num_tokens, size = query.shape
    groups = int(heads) // int(key.shape[1])  # sizes are tensors while tracing
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * (int(size) ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            if mask.dtype == torch.bool
            else scores + mask
        )
    wide = torch.promote_types(scores.dtype, torch.float32)
    if sinks is not None:
        column = sinks.view(1, -1, 1, 1).expand(scores.shape[0], -1, num_tokens, 1)
        weights = torch.cat((scores, column), -1).softmax(-1, dtype=wide)[..., :-1].to(value.dtype)
    else:
        weights = scores.softmax(-1, dtype=wide).to(value.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


for name, usual in ((FUSED, sdpa_mask), (EAGER, eager_mask)):
    AttentionInterface.register(name, tree_attention)
    AttentionMaskInterface.register(name, tree_mask(usual))
