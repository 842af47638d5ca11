"""Runs a draft model with windows of masks over whole texts, with a window behind many columns at once.

The tokens of a window attend to one another and to the text up to the column's token, which attends to text
alone: what a draft sees that begins there. So the logits are those of the columns one at a time.

Letters: R texts, T tokens, C = T - 1 columns, M columns with a window, W largest number of these in one text,
n tokens of a window, k masks among them, c windows of a column, D hidden size, V vocabulary size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from outpace.models.eager.captures import OutputCapture
from outpace.models.heads.block_states import seen_by_blocks
from outpace.training.unrolled import padded

LM_HEAD_INPUT = -1  # in OutputCapture


def window_logits(
    draft: PreTrainedModel,
    tokens: Tensor,  # (R, T) int64
    columns: Tensor,  # (R, C) bool, true at the M columns with a window
    windows: Tensor,  # (M, n) int64, the tokens behind the one that each of these columns reads
) -> Tensor:  # (M, n, V)
    """The draft model's logits in the windows, for the tokens in their own places."""
    return window_outputs(draft, tokens, columns, windows)[0]


def window_outputs(
    draft: PreTrainedModel,
    tokens: Tensor,  # (R, T) int64
    columns: Tensor,  # (R, C) bool
    windows: Tensor,  # (Mc, n) int64, those of the first column come first
    copies: int = 1,  # c, windows behind each column, which do not see one another
) -> tuple[Tensor, Tensor]:  # (Mc, n, V), (Mc, n, D)
    """The draft model's logits in the windows, and the states at the input of its LM head."""
    (rows, count), size = tokens.shape, windows.shape[1]
    index, is_column = (each.repeat_interleave(copies, 1) for each in padded(columns))
    index = index + 1  # column t reads token t + 1
    blocks = windows.new_zeros(rows, index.shape[1], size)
    blocks[is_column] = windows
    places = index[..., None] + 1 + torch.arange(size, device=tokens.device)
    of_text = torch.arange(count, device=tokens.device).expand(rows, -1)
    seen = seen_by_blocks(index, count, size)
    weight = next(draft.parameters())
    added = torch.zeros(seen.shape, dtype=weight.dtype, device=tokens.device)
    added = added.masked_fill(~seen, torch.finfo(weight.dtype).min)
    with OutputCapture(draft, 0).capture(frozenset([LM_HEAD_INPUT]), True) as captured:
        logits = draft(
            input_ids=torch.cat((tokens, blocks.flatten(1)), 1),
            attention_mask=added,
            position_ids=torch.cat((of_text, places.flatten(1)), 1),
            use_cache=False,
            logits_to_keep=blocks[0].numel(),
        ).logits
    found = logits, captured[LM_HEAD_INPUT]
    of_windows, states = (each.unflatten(1, (-1, size))[is_column] for each in found)
    return of_windows, states
