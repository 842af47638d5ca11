"""The attention and mask functions registered with transformers: every row attends to its own keys, views of the cache.

Called without a `Reading` (a user's own forward while our name is set) both do what transformers' sdpa does.

Letters: N tokens of all rows, n of one row, T places seen, H query heads, K key heads, g = H / K, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from outpace.models.probe import Probe
from outpace.models.reading import Masks, Reading, RowMask

NAME = "outpace_tree"


def tree_mask(
    *args: Any,
    kv_offset: Any = 0,
    mask_function: Any = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    allow_is_causal_skip: bool = True,
    dtype: torch.dtype = torch.float32,
    device: Any = None,
    **rest: Any,
) -> Any:
    """The masks of a forward's rows; transformers calls this once per kind of layer."""
    if isinstance(kv_offset, Probe):
        return kv_offset.mask(dtype, device)
    if not isinstance(kv_offset, Reading):
        rest |= {} if mask_function is None else {"mask_function": mask_function}
        return sdpa_mask(
            *args, kv_offset=kv_offset, local_size=local_size, use_vmap=use_vmap, device=device,
            allow_is_causal_skip=allow_is_causal_skip, **rest,
        )  # fmt: skip
    # a rule that transformers would not skip has more to it than its reach
    reach = local_size if allow_is_causal_skip and not use_vmap else None
    rows = kv_offset.masks(mask_function, reach, device)
    if not kv_offset.dense:
        return Masks(kv_offset, rows)
    return additive(rows[0], kv_offset.rows[0].start, kv_offset.rows[0].end, dtype, device)


def additive(row: RowMask, start: int, end: int, dtype: torch.dtype, device: Any) -> Tensor:  # (1, 1, n, end)
    """The mask as numbers to add to attention scores."""
    mask = row.mask
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
            probe.attend(key, value)
        if softcap is None and s_aux is None:
            return sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **rest
            )
        return _weighed_plain(query, key, value, attention_mask, scaling, softcap, s_aux)
    reading, rows = attention_mask.reading, attention_mask.rows
    eager = softcap is not None or s_aux is not None or getattr(module, "layer_idx", None) in reading.attention
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
                _weighed(module, part, key[index], value[index], attention_mask, index, scaling, softcap, s_aux)
            )
        else:
            outputs.append(attend(part, key[index], value[index], row, scaling))
        at = end
    return torch.cat(outputs, dim=1), None


def attend(query: Tensor, key: Tensor, value: Tensor, row: RowMask, scaling: float | None) -> Tensor:  # (1, n, H, D)
    """One row's attention, through the fused kernel."""
    if row.low:
        key, value = key[:, :, row.low :], value[:, :, row.low :]
    _, heads, num_tokens, size = query.shape
    groups = heads // key.shape[1]
    mask = row.mask
    if mask is not None and mask.device != query.device:
        mask = mask.to(query.device)
    if groups == 1:
        output = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=row.is_causal, scale=scaling)
        return output.transpose(1, 2)
    if num_tokens == 1:
        # grouped heads as queries of one head: the kernel is several times slower with enable_gqa and one query
        output = scaled_dot_product_attention(
            query.view(1, -1, groups, size), key, value, attn_mask=mask, scale=scaling
        )
        return output.reshape(1, 1, heads, -1)
    # key heads as the batch, so that a group's heads share keys through a stride of 0 instead of copies
    output = scaled_dot_product_attention(
        query.view(-1, groups, num_tokens, size),
        key.transpose(0, 1).expand(-1, groups, -1, -1),
        value.transpose(0, 1).expand(-1, groups, -1, -1),
        attn_mask=mask,
        is_causal=row.is_causal,
        scale=scaling,
    )
    return output.reshape(1, heads, num_tokens, -1).transpose(1, 2)


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
    output, weights = _weighed_plain(query, key, value, mask, scaling, softcap, sinks)
    layer = getattr(module, "layer_idx", None)
    if layer in masks.reading.attention:
        masks.reading.weights.setdefault(layer, []).append(weights[0])
    return output


def _weighed_plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:  # (1, n, H, D), (1, H, n, T)
    _, heads, num_tokens, size = query.shape
    groups = heads // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * (size**-0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if mask.dtype == torch.bool else scores + mask
    wide = torch.promote_types(scores.dtype, torch.float32)
    if sinks is not None:
        column = sinks.view(1, -1, 1, 1).expand(len(scores), -1, num_tokens, 1)
        weights = torch.cat((scores, column), -1).softmax(-1, dtype=wide)[..., :-1].to(value.dtype)
    else:
        weights = scores.softmax(-1, dtype=wide).to(value.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register(NAME, tree_attention)
AttentionMaskInterface.register(NAME, tree_mask)
