"""A head over whole texts as it runs while drafting: first on the target's features, then on its own outputs.

Column t of step 0 reads token t + 1 with the target's feature at token t; column t of step s reads token
t + 1 + s with the output of column t at step s - 1, which takes the place of the feature at token t + s. It
attends to the columns up to t of step 0 and to column t of the later steps: what a draft that begins at
column t would have in its KV cache. (Training-time test, Li et al. 2025; the same context as in HASS, Zhang
et al. 2025, whose columns are counted from the draft's end.)

Letters: R texts, T tokens, C = T - 1 columns, D hidden size, F size of a feature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from outpace.models.heads.draft_head import DraftHead


@dataclass(frozen=True)
class UnrolledStep:
    """The head's outputs at one step, for column t about what follows token t + 1 + `step`."""

    step: int
    states: Tensor  # (R, C, D) output of the last layer
    features: Tensor  # (R, C, F) what the next step reads


def unrolled(
    head: DraftHead,
    tokens: Tensor,  # (R, T) int64
    features: Tensor,  # (R, C, F) of the target at tokens 0 to C - 1
    num_steps: int,
    *,
    detached: bool = False,  # no gradient through the head's outputs as inputs of the next step
) -> Iterator[UnrolledStep]:
    """Run the head over all columns, step by step. Tokens beyond the end of a text read token 0; the columns
    that need them are to be masked."""
    rows, columns = features.shape[:2]
    device = features.device
    kept = _KeptEntries()
    causal = torch.ones(columns, columns, dtype=torch.bool, device=device).tril()
    own = torch.eye(columns, dtype=torch.bool, device=device)
    for step in range(num_steps):
        read = torch.zeros(rows, columns, dtype=torch.int64, device=device)
        following = tokens[:, 1 + step : 1 + step + columns]
        read[:, : following.shape[1]] = following
        embedded = head.embed_tokens(read).detach().to(features.dtype)
        positions = torch.arange(step, step + columns, device=device)[None]
        mask = torch.cat((causal, *[own] * step), 1)[None, None]
        states = head.states(embedded, features, positions, mask, kept)
        features = head.norm(states) if head.state_layer == -1 else states
        yield UnrolledStep(step, states, features)
        if detached:
            features = features.detach()


def over_text(head: DraftHead, tokens: Tensor, features: Tensor) -> Tensor:  # (R, T), (R, C, F) -> (R, C, D)
    """The normed outputs of a head that runs over the text only, at columns 0 to C - 1."""
    (step,) = unrolled(head, tokens, features, 1)
    return head.norm(step.states)


class _KeptEntries(Cache):
    """The keys and values of all steps so far, one after the other."""

    layers: list[object] = []

    def __init__(self) -> None:
        # super().__init__() is left out: transformers' Cache needs cache layers there, and this one has none
        self._entries: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        if before := self._entries.get(layer_idx):
            key_states = torch.cat((before[0], key_states), 2)
            value_states = torch.cat((before[1], value_states), 2)
        self._entries[layer_idx] = key_states, value_states
        return key_states, value_states
