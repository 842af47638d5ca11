"""Runs a head that reads two-way blocks over whole texts, with a block behind every column at once.

Letters: R texts, T tokens, C = T - 1 columns, M columns whose outputs are wanted, D hidden size, F size of a
feature.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from outpace.models.heads.block_states import block_states
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
    index, is_column = padded(columns)
    of_blocks = block_states(head, tokens, features, index)
    for step in range(num_steps):
        found = of_blocks[:, :, step + (not head.drafts_at_root)][is_column]
        normed = head.norm(found)
        yield UnrolledStep(step, found, normed, normed if head.state_layer == -1 else found)
