"""Reads a whole text with a head for two-way blocks, with a block behind several of its tokens at once.

The block of a column is the token after it and masks behind that. All of its tokens attend to one another and
to the features of the text up to the column: what a draft sees that begins there. So the outputs are those of
the columns one at a time (Chen et al. 2026, DFlash).

Letters: R texts, T tokens, C = T - 1 columns, W blocks of a text, B tokens of a block, D hidden size, F size
of a feature.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.models.heads.draft_head import DraftHead


def block_states(
    head: DraftHead,
    tokens: Tensor,  # (R, T) int64
    features: Tensor,  # (R, C, F) of the target at tokens 0 to C - 1
    index: Tensor,  # (R, W) the columns behind which blocks stand
    *,
    causal: bool = False,  # a token of a block attends to those before it in the block alone
) -> Tensor:  # (R, W, B, D)
    """The outputs of the last layer, before its norm, at the tokens of the blocks."""
    rows, count = features.shape[:2]
    width, device, size = index.shape[1], features.device, 1 + (head.num_masks or 0)
    ids, feature = head.mask_inputs(size - 1)
    roots = tokens.gather(1, index + 1)[..., None]
    blocks = torch.cat((roots, ids.to(device).expand(rows, width, -1)), 2)  # (R, W, B)
    read = torch.cat((tokens[:, :count], blocks.flatten(1)), 1)
    given = feature.to(features).expand(rows, blocks[0].numel(), -1)
    places = 1 + index[..., None] + torch.arange(size, device=device)
    at = torch.cat((torch.arange(count, device=device).expand(rows, -1), places.flatten(1)), 1)
    embedded = head.embedded(read).detach().to(features.dtype)
    mask = seen_by_blocks(index, count, size, causal=causal)
    states = head.states(embedded, torch.cat((features, given), 1), at, mask, None)
    return states[:, count:].unflatten(1, (width, size))


def seen_by_blocks(
    index: Tensor,  # (R, W) the columns behind which blocks stand
    count: int,  # C
    size: int,  # B
    *,
    causal: bool = False,
) -> Tensor:  # (R, 1, C + WB, C + WB) bool
    """Which tokens of the text and of the blocks each of them attends to."""
    rows, width = index.shape
    device = index.device
    of_columns = torch.ones(count, count, dtype=torch.bool, device=device).tril()
    inside = torch.ones(size, size, dtype=torch.bool, device=device)
    own = torch.eye(width, dtype=torch.bool, device=device)
    blocks = torch.kron(own, inside.tril() if causal else inside).expand(rows, -1, -1)
    of_blocks = torch.cat((of_columns[index].repeat_interleave(size, 1), blocks), 2)
    of_text = torch.nn.functional.pad(of_columns.expand(rows, -1, -1), (0, width * size))
    return torch.cat((of_text, of_blocks), 1)[:, None]
