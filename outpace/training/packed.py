"""Runs a drafter with mask slots over whole texts, with a group of masks behind every column at once.

Mask j of a column's group stands j places behind the column and attends to the columns up to it and to the
masks before it in its own group: what a draft sees that begins there. So the outputs are those of the columns
one at a time (group-wise parallel training, Xiao et al. 2024, ParallelSpec).

Letters: R texts, T tokens, C = T - 1 columns, M columns whose outputs are wanted, W largest number of these
in one text, k masks, D hidden size, F size of a feature.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from outpace.models.heads.draft_head import DraftHead
from outpace.training.unrolled import UnrolledStep, padded


def packed(
    head: DraftHead,
    tokens: Tensor,  # (R, T) int64
    features: Tensor,  # (R, C, F) of the target at tokens 0 to C - 1
    columns: Tensor,  # (R, C) bool, true at the M columns whose outputs are wanted
    num_steps: int,
    *,
    detached: bool = False,  # has no effect: masks do not read the head's outputs
) -> Iterator[UnrolledStep]:
    """The outputs at the columns, and then at each of `num_steps` - 1 masks behind them."""
    rows, count = features.shape[:2]
    device, num_masks = features.device, num_steps - 1
    index, is_column = padded(columns)
    width = index.shape[1]
    ids, feature = head.mask_inputs(num_masks)
    of_text = head.embedded(tokens[:, 1 : count + 1]).detach().to(features.dtype)
    of_masks = head.embedded(ids.to(device)).to(features.dtype).repeat(width, 1).expand(rows, -1, -1)
    embedded = torch.cat((of_text, of_masks), 1)
    behind = feature.to(features.dtype).expand(rows, width * num_masks, -1)
    steps = torch.arange(1, num_steps, device=device)
    places = (index[..., None] + steps).flatten(1)
    at = torch.cat((torch.arange(count, device=device).expand(rows, -1), places), 1)
    given, mask = torch.cat((features, behind), 1), grouped(index, count, num_masks)
    states = head.states(embedded, given, at, mask, None)
    of_groups = states[:, count:].unflatten(1, (width, num_masks))
    for step in range(num_steps):
        found = of_groups[:, :, step - 1][is_column] if step else states[:, :count][columns]
        outputs = head.norm(found)
        yield UnrolledStep(step, found, outputs, outputs if head.state_layer == -1 else found)


def packed_logits(
    draft: PreTrainedModel,
    tokens: Tensor,  # (R, T) int64
    columns: Tensor,  # (R, C) bool, true at the M columns whose outputs are wanted
    mask: int,
    num_steps: int,
) -> list[Tensor]:  # num_steps × (M, V)
    """The logits of a draft model after the token that a column reads, and in `num_steps` - 1 mask tokens
    behind it."""
    rows, count = tokens.shape
    device, num_masks = tokens.device, num_steps - 1
    index, is_column = padded(columns)
    index, width = index + 1, index.shape[1]  # column t reads token t + 1
    places = (index[..., None] + torch.arange(1, num_steps, device=device)).flatten(1)
    at = torch.cat((torch.arange(count, device=device).expand(rows, -1), places), 1)
    read = torch.cat((tokens, tokens.new_full(places.shape, mask)), 1)
    seen = grouped(index, count, num_masks)
    weight = next(draft.parameters())
    added = torch.zeros(seen.shape, dtype=weight.dtype, device=device)
    added = added.masked_fill(~seen, torch.finfo(weight.dtype).min)
    logits = draft(input_ids=read, attention_mask=added, position_ids=at, use_cache=False).logits
    of_groups = logits[:, count:].unflatten(1, (width, num_masks))
    of_text = logits[:, 1:count][columns]
    return [of_text, *(of_groups[:, :, step][is_column] for step in range(num_masks))]


def grouped(index: Tensor, count: int, num_masks: int) -> Tensor:  # (R, W) -> (R, 1, C + Wk, C + Wk) bool
    """Which columns and masks each of them attends to."""
    rows, width = index.shape
    device = index.device
    causal = torch.ones(count, count, dtype=torch.bool, device=device).tril()
    own = torch.eye(width, dtype=torch.bool, device=device)
    before = torch.ones(num_masks, num_masks, dtype=torch.bool, device=device).tril()
    groups = torch.kron(own, before).expand(rows, -1, -1)
    of_masks = torch.cat((causal[index].repeat_interleave(num_masks, 1), groups), 2)
    of_text = torch.nn.functional.pad(causal.expand(rows, -1, -1), (0, width * num_masks))
    return torch.cat((of_text, of_masks), 1)[:, None]
