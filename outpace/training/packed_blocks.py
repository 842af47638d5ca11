"""Runs a head that reads two-way blocks over whole texts, with a block behind every column at once.

The block of a column is the token after it and masks behind that. All of its tokens attend to one another and
to the features of the text up to the column: what a draft sees that begins there. So the outputs are those of
the columns one at a time (Chen et al. 2026, DFlash).

Letters: R texts, T tokens, C = T - 1 columns, M columns whose outputs are wanted, W largest number of these
in one text, B tokens of a block, D hidden size, F size of a feature.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from outpace.models.heads.draft_head import DraftHead
from outpace.training.unrolled import UnrolledStep, padded


def packed_blocks(
    head: DraftHead,
    tokens: Tensor,  # (R, T) int64
    features: Tensor,  # (R, C, F) of the target at tokens 0 to C - 1
    columns: Tensor,  # (R, C) bool, true at the M columns whose outputs are wanted
    num_steps: int,  # at most `DraftHead.block_levels`
    *,
    detached: bool = False,  # has no effect: masks do not read the head's outputs
) -> Iterator[UnrolledStep]:
    """The outputs at the first `num_steps` places of the columns' blocks that draft a token."""
    rows, count = features.shape[:2]
    device, num_masks = features.device, head.num_masks or 0
    index, is_column = padded(columns)
    width = index.shape[1]
    ids, feature = head.mask_inputs(num_masks)
    roots = tokens.gather(1, index + 1)[..., None]
    blocks = torch.cat((roots, ids.to(device).expand(rows, width, -1)), 2)  # (R, W, B)
    read = torch.cat((tokens[:, :count], blocks.flatten(1)), 1)
    given = feature.to(features).expand(rows, blocks[0].numel(), -1)
    places = 1 + index[..., None] + torch.arange(1 + num_masks, device=device)
    at = torch.cat((torch.arange(count, device=device).expand(rows, -1), places.flatten(1)), 1)
    embedded = head.embedded(read).detach().to(features.dtype)
    mask = seen_by_blocks(index, count, 1 + num_masks)
    states = head.states(embedded, torch.cat((features, given), 1), at, mask, None)
    of_blocks = states[:, count:].unflatten(1, (width, 1 + num_masks))
    for step in range(num_steps):
        found = of_blocks[:, :, step + (not head.drafts_at_root)][is_column]
        normed = head.norm(found)
        yield UnrolledStep(step, found, normed, normed if head.state_layer == -1 else found)


def seen_by_blocks(  # (R, W) -> (R, 1, C + WB, C + WB) bool
    index: Tensor, count: int, size: int
) -> Tensor:
    """Which tokens of the text and of the blocks each of them attends to."""
    rows, width = index.shape
    device = index.device
    causal = torch.ones(count, count, dtype=torch.bool, device=device).tril()
    own = torch.eye(width, dtype=torch.bool, device=device).repeat_interleave(size, 0)
    blocks = own.repeat_interleave(size, 1).expand(rows, -1, -1)
    of_blocks = torch.cat((causal[index].repeat_interleave(size, 1), blocks), 2)
    of_text = torch.nn.functional.pad(causal.expand(rows, -1, -1), (0, width * size))
    return torch.cat((of_text, of_blocks), 1)[:, None]
