"""Runs a head over whole texts as in drafting: first on the target's features, then on its own outputs.

Column t of step 0 reads token t + 1 with the target's feature at token t; column t of step s reads token
t + 1 + s with the output of column t at step s - 1, in place of the feature at token t + s. It attends to the
columns up to t of step 0 and to column t of later steps: the KV cache of a draft that begins at column t.
(Training-time test, Li et al. 2025; the same context as in HASS, Zhang et al. 2025, where columns are counted
from the draft's end.)

Letters: R texts, T tokens, C = T - 1 columns, M columns whose outputs are wanted, W largest number of these
in one text, D hidden size, F size of a feature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.text_reader import KeptEntries


@dataclass(frozen=True)
class UnrolledStep:
    """The head's outputs at one step; column t predicts the token after token t + 1 + `step`."""

    step: int
    states: Tensor  # (M, D) output of the last layer, or what a tail gives in its place
    outputs: Tensor  # (M, D) input of the LM head
    features: Tensor  # (M, F) features for the next step


def unrolled(
    head: DraftHead,
    tokens: Tensor,  # (R, T) int64
    features: Tensor,  # (R, C, F) of the target at tokens 0 to C - 1
    columns: Tensor,  # (R, C) bool, true at the M columns whose outputs are wanted
    num_steps: int,
    *,
    detached: bool = False,  # no gradient through the head's outputs as inputs of the next step
    # (R, C, num_steps - 1) the tokens that the steps after the first read at each column, as of a draft that
    # begins there; None: those of the text
    paths: Tensor | None = None,
) -> Iterator[UnrolledStep]:
    """Run the head step by step: step 0 over all columns, since later ones attend to them, further steps over
    the wanted columns. Beyond the end of a text token 0 is read: callers mask the columns concerned."""
    rows, count = features.shape[:2]
    device = features.device
    kept = KeptEntries()
    causal = torch.ones(count, count, dtype=torch.bool, device=device).tril()
    index, is_column = padded(columns)
    own = torch.eye(index.shape[1], dtype=torch.bool, device=device).expand(rows, -1, -1)
    at = torch.arange(count, device=device).expand(rows, -1)  # (R, W) columns of the step
    mask = causal.expand(rows, -1, -1)  # (R, W, keys)
    for step in range(num_steps):
        if step == 1:
            at, mask = index, causal[index]
        if step:
            mask = torch.cat((mask, own), 2)
        if step and paths is not None:
            read = paths[..., step - 1].gather(1, at)
        else:
            read = torch.nn.functional.pad(tokens, (0, 1 + step)).gather(1, at + 1 + step)
        embedded = head.embed_tokens(read).detach().to(features.dtype)
        states = head.states(embedded, features, at + step, mask[:, None], kept)
        features = head.norm(states) if head.state_layer == -1 else states
        wanted = is_column if step else columns
        taken = features[wanted]
        outputs = taken if head.state_layer == -1 else head.norm(states[wanted])
        yield UnrolledStep(step, states[wanted], outputs, taken)
        if not step:
            features = features.gather(1, index[..., None].expand(-1, -1, features.shape[2]))
        if detached:
            features = features.detach()


def over_text(head: DraftHead, tokens: Tensor, features: Tensor) -> Tensor:  # (R, T), (R, C, F) -> (R, C, D)
    """The normed outputs of a head at columns 0 to C - 1, without steps on its own outputs."""
    rows, count = features.shape[:2]
    columns = torch.ones(rows, count, dtype=torch.bool, device=features.device)
    (step,) = unrolled(head, tokens, features, columns, 1)
    return step.outputs.view(rows, count, -1)


def padded(columns: Tensor) -> tuple[Tensor, Tensor]:  # (R, C) bool -> (R, W) int64, (R, W) bool
    """The indices of each text's columns in increasing order, padded with 0, and a mask without padding."""
    counts = columns.sum(1)
    width = int(counts.max())
    is_column = torch.arange(width, device=columns.device) < counts[:, None]
    index = torch.zeros(is_column.shape, dtype=torch.int64, device=columns.device)
    index[is_column] = columns.nonzero()[:, 1]
    return index, is_column
