"""The attention and mask functions registered with transformers: every row attends to its own keys, views of
the cache.

Called without a `Reading` (a user's own forward while our name is set) both do what transformers' sdpa does.

Letters: N tokens of all rows, n of one row, T places seen, H query heads, K key heads, g = H / K, D head
size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from outpace.models.cuda_graphs.static_memory import Fixed
from outpace.models.hf.forward_inputs import ForwardInputs, Masks, RowMask
from outpace.models.hf.probe import Probe

FUSED, EAGER = (
    "outpace_tree",
    "outpace_tree_eager",
)  # they differ in what they do in forwards that are not ours
FEW, MANY = (
    4,
    8,
)  # heads in a group from which, and tokens up to which, folding a group into one head pays on a CPU


def tree_mask(usual: Callable[..., Any]) -> Callable[..., Any]:
    """The mask function; transformers calls it once per kind of layer. `usual` serves forwards that are not
    ours."""

    def mask(*, kv_offset: Any, mask_function: Any, dtype: torch.dtype, device: Any, **rest: Any) -> Any:
        if isinstance(kv_offset, Probe):
            return kv_offset.mask(dtype, device)
        if not isinstance(kv_offset, ForwardInputs | Fixed):
            return usual(kv_offset=kv_offset, mask_function=mask_function, dtype=dtype, device=device, **rest)
        # a rule that transformers itself would not skip has more to it than its reach
        simple = rest.get("allow_is_causal_skip", False) and not rest.get("use_vmap", False)
        reach = rest.get("local_size") if simple else None
        if isinstance(kv_offset, Fixed):
            return kv_offset.mask(mask_function, reach, dtype)
        rows = kv_offset.masks(mask_function, reach, device)
        if not kv_offset.dense:
            return Masks(kv_offset, rows)
        return additive(rows[0], kv_offset.rows[0].start, kv_offset.rows[0].end, dtype, device)

    return mask


def additive(row: RowMask, start: int, end: int, dtype: torch.dtype, device: Any) -> Tensor:  # (1, 1, n, end)
    """The mask as numbers to add to attention scores."""
    mask = row.on(device)
    if mask is None:
        count = torch.arange(end, device=device)
        mask = count <= count[start:, None]
    values = torch.zeros(mask.shape, dtype=dtype, device=device).masked_fill_(~mask, torch.finfo(dtype).min)
    return pad(values, (row.low, 0), value=torch.finfo(dtype).min)[None, None]


def tree_attention(
    module: nn.Module,
    query: Tensor,  # (1, H, N, D)
    key: Any,  # (1, K, T, D), or a tuple of that per row
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **rest: Any,
) -> tuple[Tensor, Tensor | None]:  # (1, N, H, D), weights where a row's own mask was asked for
    """Attention of every row over its own keys."""
    if not isinstance(attention_mask, Masks):
        if isinstance(probe := getattr(attention_mask, "probe", None), Probe):
            if probe.tuples:
                (key,), (value,) = key, value
            probe.attend(key, value)
        if softcap is None and s_aux is None:
            return sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **rest
            )
        return weighed(query, key, value, attention_mask, scaling, softcap, s_aux)
    reading, rows = attention_mask.reading, attention_mask.rows
    eager = (
        softcap is not None or s_aux is not None or getattr(module, "layer_idx", None) in reading.attention
    )
    if len(rows) == 1:
        if eager:
            return _weighed(module, query, key, value, attention_mask, 0, scaling, softcap, s_aux), None
        return attend(query, key, value, rows[0], scaling), None
    outputs, at = [], 0
    for index, (row, place) in enumerate(zip(rows, reading.rows, strict=True)):
        end = at + place.end - place.start
        part = query[:, :, at:end]
        if eager:
            outputs.append(
                _weighed(
                    module, part, key[index], value[index], attention_mask, index, scaling, softcap, s_aux
                )
            )
        else:
            outputs.append(attend(part, key[index], value[index], row, scaling))
        at = end
    return torch.cat(outputs, dim=1), None


def attend(
    query: Tensor, key: Tensor, value: Tensor, row: RowMask, scaling: float | None
) -> Tensor:  # (1, n, H, D)
    """One row's attention, through the fused kernel."""
    if row.low:
        key, value = key[:, :, row.low :], value[:, :, row.low :]
    _, heads, num_tokens, size = query.shape
    groups = heads // key.shape[1]
    if num_tokens == 1 or (groups >= FEW and num_tokens <= MANY):
        # a group's heads as queries of one head: keys are read once a group, and the kernel is slow with one
        # query
        folded = query.reshape(1, -1, groups * num_tokens, size)
        if groups == 1 and query.dtype != torch.float32 and query.device.type == "cpu":
            folded = folded.expand(-1, -1, 2, -1)  # even a copy of the query makes it faster
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
    # elsewhere grouped heads under a mask have no fused kernel: key heads as the batch, shared through a
    # stride of 0
    output = scaled_dot_product_attention(
        query.view(-1, groups, num_tokens, size),
        key.transpose(0, 1).expand(-1, groups, -1, -1),
        value.transpose(0, 1).expand(-1, groups, -1, -1),
        attn_mask=mask,
        scale=scaling,
    )
    return output.reshape(1, heads, num_tokens, -1).transpose(1, 2).contiguous()


def _weighed(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masks: Masks,
    index: int,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:  # (1, n, H, D)
    """One row's attention through explicit weights: what fused kernels cannot do, and what a tap reads."""
    row, place = masks.rows[index], masks.reading.rows[index]
    mask = additive(row, place.start, place.end, query.dtype, query.device)
    output, weights = weighed(query, key, value, mask, scaling, softcap, sinks)
    layer = getattr(module, "layer_idx", None)
    if layer in masks.reading.attention:
        masks.reading.weights.setdefault(layer, []).append(weights[0])
    return output


def weighed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:  # (1, n, H, D), (1, H, n, T)
    """Attention through explicit weights, and the weights."""
    _, heads, num_tokens, size = query.shape
    groups = int(heads) // int(key.shape[1])  # a trace makes tensors of sizes
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
