"""Forwards of a head over a whole text and over draft trees that begin at places of it, by its layers alone,
so that they may have a gradient and weights of another dtype than the target's.

A tree at column t begins with token t + 1 of the text as its root, which the head reads with the target's
feature at token t.

Letters: T tokens, C = T - 1 columns, P trees, N nodes, F size of a feature, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from outpace.models.heads.draft_head import DraftHead


class TextReader:
    """Reads a text with the target's features once, and then the nodes of draft trees level by level, each
    with the head's own output at its parent. A node attends to the text up to its root and to the nodes above
    it, as in drafting."""

    def __init__(
        self,
        head: DraftHead,
        tokens: Tensor,  # (T,) int64
        features: Tensor,  # (C, F)
        columns: Sequence[int],  # (P,)
    ) -> None:
        self._head, self._kept = head, KeptEntries()
        count, device = len(features), features.device
        causal = torch.ones(count, count, dtype=torch.bool, device=device).tril()
        at = torch.tensor(columns, device=device)
        outputs = self._run(tokens[1:], features, torch.arange(count, device=device), causal)
        # (N, D) the head's outputs before its norm, by node, those of the trees' roots first
        self.outputs, self._positions = outputs[at], at
        self._seen = causal[at]  # (N, C + nodes that are no roots): what the node attends to

    def read(self, tokens: Tensor, parents: Sequence[int]) -> None:  # (n,), (n,)
        """Read further nodes, whose parents were read before."""
        head, count, device = self._head, len(tokens), self.outputs.device
        above = torch.tensor(parents, device=device)
        own = torch.eye(count, dtype=torch.bool, device=device)
        seen = torch.cat((self._seen[above], own), 1)
        positions = self._positions[above] + 1
        features = self.outputs[above]
        if head.state_layer == -1:
            features = head.norm(features)
        outputs = self._run(tokens, features, positions, seen)
        self.outputs = torch.cat((self.outputs, outputs))
        self._positions = torch.cat((self._positions, positions))
        self._seen = torch.cat((torch.nn.functional.pad(self._seen, (0, count)), seen))

    def _run(self, tokens: Tensor, features: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        head = self._head
        with torch.no_grad():  # the embedding is the target's
            embedded = head.embed_tokens(tokens.to(features.device)).to(features.dtype)
        return head.states(embedded[None], features[None], positions[None], seen[None, None], self._kept)[0]


class KeptEntries(Cache):
    """A KV cache with the keys and values of all steps so far, concatenated."""

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
