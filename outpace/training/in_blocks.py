"""Runs Falcon's head over whole texts, with a block of two tokens at every column at once.

The block at column t are the tokens t and t + 1. As entries of the KV cache do not depend on blocks, two runs
of the decoder layer give the outputs of all of them: one in which each token also attends to the next, for
the first tokens, and a causal one for the second tokens.

Letters: R texts, T tokens, C = T - 1 columns, M columns whose outputs are wanted, F size of a feature.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.falcon.head import BLOCK, FalconHead
from outpace.training.unrolled import UnrolledStep


def in_blocks(
    head: DraftHead,
    tokens: Tensor,  # (R, T) int64
    features: Tensor,  # (R, C, F) of the target at tokens 0 to C - 1
    columns: Tensor,  # (R, C) bool, true at the M columns whose outputs are wanted
    num_steps: int,
    *,
    detached: bool = False,  # has no effect: blocks are read on the target's features
) -> Iterator[UnrolledStep]:
    """The outputs at the columns for the next token and the one after it: at most two steps."""
    assert isinstance(head, FalconHead)
    count = features.shape[1]
    embedded = head.embedded(tokens[:, 1 : count + 1]).detach().to(features.dtype)
    reduced, _ = head.reduce(embedded, features)
    at = torch.arange(count, device=features.device)[None]
    square = torch.ones(count, count, dtype=torch.bool, device=features.device)
    for step in range(min(num_steps, BLOCK)):
        mask = square.tril(0 if step else 1)[None, None]
        states = head.states(embedded, reduced, at, mask, None)
        if not step:  # the first token of a column's block is that of the column before
            states = torch.cat((states[:, :1], states[:, :-1]), 1)
        outputs = states[columns]
        yield UnrolledStep(step, outputs, outputs, outputs)
