"""Outputs of a forward for the requested tokens, in the order of its inputs.

Letters: N tokens, V vocabulary size, D hidden size, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outpace.core.contracts import Scores


@dataclass(eq=False, slots=True)
class ForwardOutputs:
    """Logits, layer outputs and attention weights of N tokens."""

    logits: Tensor | None  # (N, V)
    hidden: dict[int, Tensor] = field(default_factory=dict[int, Tensor])  # layer -> (N, D)
    # layer -> attention weights, per token (query heads, tokens attended to)
    attention: dict[int, list[Tensor]] = field(default_factory=dict[int, "list[Tensor]"])
    computed: int | None = None  # number of tokens, padding included; None: there is no padding

    @staticmethod
    def joined(parts: Sequence[ForwardOutputs]) -> ForwardOutputs:
        """Concatenate the outputs of several forwards or rows."""
        if len(parts) == 1:
            return parts[0]
        logits = [part.logits for part in parts if part.logits is not None]
        computed = [part.computed for part in parts if part.computed is not None]
        return ForwardOutputs(
            torch.cat(logits) if logits else None,
            {layer: torch.cat([part.hidden[layer] for part in parts]) for layer in parts[0].hidden},
            {
                layer: [node for part in parts for node in part.attention[layer]]
                for layer in parts[0].attention
            },
            sum(computed) if computed else None,
        )

    def split(self, sizes: list[int]) -> list[ForwardOutputs]:
        """Split the outputs into consecutive parts with these numbers of tokens."""
        if len(sizes) == 1:
            return [self]
        parts, start = [], 0
        for size in sizes:
            run = slice(start, start + size)
            parts.append(
                ForwardOutputs(
                    None if self.logits is None else self.logits[run],
                    {layer: states[run] for layer, states in self.hidden.items()},
                    {layer: nodes[run] for layer, nodes in self.attention.items()},
                )
            )
            start += size
        return parts

    def scores(
        self, first: int, indices: Tensor | None
    ) -> Scores:  # (N,) index of each node in these outputs; None: in order
        """These outputs as `Scores`, reordered to node order; `first` is the index of the first node."""
        if indices is None:
            return Scores(first, self.logits, self.hidden, self.attention, self.computed)
        return Scores(
            first,
            None if self.logits is None else self.logits[indices],
            {layer: states[indices] for layer, states in self.hidden.items()},
            {layer: [nodes[place] for place in indices.tolist()] for layer, nodes in self.attention.items()},
            self.computed,
        )
