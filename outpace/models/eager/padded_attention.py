"""Attention of all rows of a forward in one call: tokens and keys of every row are padded to the most of any.

On a GPU, where a call for each row costs several kernel launches in every layer. Not run on one so far.

Letters: B rows, N tokens of all rows, n tokens of one row, T cache positions of one row, H query heads, K key
heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from outpace.models.eager.forward_inputs import RowMasks

MOST_PADDING = 4  # times the work of the rows themselves from which they are computed one by one


def is_worth_padding(masks: RowMasks, device: torch.device) -> bool:
    """Whether one call over padded rows is likely faster than a call for each row. On a CPU, where a call
    costs little, it is not: keys are copied for it."""
    if device.type == "cpu" or any(row.is_causal for row in masks.rows):
        return False  # a causal mask that is not stored is that of a long prompt
    sizes, lengths = masks.sizes, masks.lengths
    own = sum(num * length for num, length in zip(sizes, lengths, strict=True))
    return len(sizes) * max(sizes) * max(lengths) <= MOST_PADDING * own


def padded_attention(
    query: Tensor,  # (1, H, N, D)
    keys: Sequence[Tensor],  # B × (1, K, T, D)
    values: Sequence[Tensor],
    masks: RowMasks,
    scaling: float | None,
) -> Tensor:  # (1, N, H, D)
    """Attention of every row's tokens to the keys and values of that row."""
    sizes, heads, size = masks.sizes, keys[0].shape[1], query.shape[-1]
    rows, groups, most = len(sizes), query.shape[1] // heads, max(sizes)
    tokens = _padded(query.split(sizes, 2), most)[0]
    # the query heads of a key head become queries of one head: no fused kernel supports grouped heads with a
    # mask, and keys are loaded once
    tokens = tokens.reshape(heads, groups, rows, most, size).permute(2, 0, 1, 3, 4)
    lows = [row.low for row in masks.rows]
    length = max(masks.lengths)
    key, value = (
        _padded([each[:, :, low:] for each, low in zip(part, lows, strict=True)], length)[0]
        .unflatten(1, (rows, length))
        .transpose(0, 1)
        for part in (keys, values)
    )
    output = scaled_dot_product_attention(
        tokens.reshape(rows, heads, groups * most, size),
        key,
        value,
        attn_mask=masks.padded(groups, query.device),
        scale=scaling,
    )
    # (B, K, groups * n, D) -> (B, n, H, D)
    output = output.unflatten(2, (groups, most)).permute(0, 3, 1, 2, 4).flatten(2, 3)
    if min(sizes) == most:
        return output.reshape(1, rows * most, heads * groups, -1)
    return torch.cat([each[:num] for each, num in zip(output, sizes, strict=True)])[None]


def _padded(parts: Sequence[Tensor], length: int) -> Tensor:  # B × (1, H, n, D) -> (1, H, B * length, D)
    """The parts one after the other, each with zeros up to this length."""
    zeros = None
    padded = list[Tensor]()
    for part in parts:
        padded.append(part)
        if (missing := length - part.shape[2]) > 0:
            if zeros is None:
                shortest = min(each.shape[2] for each in parts)
                # not uninitialised memory: masked values are multiplied by 0, and 0 times NaN is NaN
                zeros = part.new_zeros(*part.shape[:2], length - shortest, part.shape[3])
            padded.append(zeros[:, :, :missing])
    return torch.cat(padded, 2)
