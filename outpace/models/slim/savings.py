"""QuickSilver's rules (Khanna et al. 2025): which tokens may leave out later layers, and with how few bits
the others are computed.

Letters: M tokens, D hidden size, V vocabulary size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# entropies in nats up to which a token's activations have 2 and 4 bits; above: 8 bits
LOW_ENTROPY, MIDDLE_ENTROPY = 0.5, 2.0
LOW_BITS, MIDDLE_BITS, HIGH_BITS = 2, 4, 8


@dataclass(frozen=True)
class Savings:
    """What is saved from the end of layer `first_layer` on, counted from 1."""

    first_layer: int  # layers that compute all tokens in full
    # a token halts after a layer that changed its state by less than `drift`, relative to the state's norm,
    # if the entropy of the prediction there is below `entropy` nats; 0: never
    drift: float = 0.0
    entropy: float = 0.0
    # a token is fused if its state's relative distance to the preceding token's is below this; 0: never
    fusion: float = 0.0
    skip_kv: bool = True  # tokens that halted or were fused have no keys and values in later layers
    quantize: bool = False  # activations of later layers have 2, 4 or 8 bits by the entropy

    @property
    def any(self) -> bool:
        """Whether anything is saved."""
        return bool((self.drift and self.entropy) or self.fusion or self.quantize)

    def check(self, num_layers: int) -> None:
        """ValueError for values that do not suit a model of `num_layers` layers."""
        if num_layers < 2:
            raise ValueError("a target of one layer cannot skip any: use a draft model")
        if not 0 < self.first_layer < num_layers:
            raise ValueError(
                f"first_layer is {self.first_layer}: a model of {num_layers} layers can save after layers 1 "
                f"to {num_layers - 1}"
            )
        for name in ("drift", "entropy", "fusion"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"{name} is {value}: it is 0, which turns it off, or more")


def distance(states: Tensor, of: Tensor) -> Tensor:  # (M, D), (M, D) -> (M,)
    """The distance between two states, relative to the norm of the first."""
    return (of - states).norm(dim=-1) / states.norm(dim=-1)


def entropy(logits: Tensor) -> Tensor:  # (M, V) -> (M,)
    """The entropy of a distribution, in nats."""
    probs = logits.to(torch.promote_types(torch.float32, logits.dtype)).softmax(-1)
    return torch.special.entr(probs).sum(-1)


def bits(entropies: Tensor) -> Tensor:  # (M,) -> (M,) int64
    """Bits of the activations of tokens whose predictions have these entropies."""
    num_bits = torch.full_like(entropies, HIGH_BITS, dtype=torch.int64)
    num_bits[entropies < MIDDLE_ENTROPY] = MIDDLE_BITS
    num_bits[entropies < LOW_ENTROPY] = LOW_BITS
    return num_bits


def quantized(states: Tensor, num_bits: Tensor) -> Tensor:  # (..., M, D), (M,) -> (..., M, D)
    """The states rounded to integers of `num_bits` bits, with one scale per token. This simulates integer
    arithmetic; it saves no time."""
    largest = (2 ** (num_bits - 1) - 1).to(states)[:, None]
    scale = states.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(states.dtype).tiny) / largest
    return (states / scale).round() * scale
