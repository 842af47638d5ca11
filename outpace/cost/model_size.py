"""The sizes of a model on which the work of its forwards depends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# bits of a weight; those of compressed matrices with the scales and zero points of groups of 128 weights
BITS = {"float32": 32.0, "bfloat16": 16.0, "float16": 16.0, "int8": 8.25, "int4": 4.25}


@dataclass(frozen=True)
class AttentionLayer:
    """The attention of one layer."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    window: int | None = None  # tokens that a token attends to at most; None: all

    @property
    def kv_elements(self) -> int:
        """Numbers that the KV cache holds of a token."""
        return 2 * self.num_kv_heads * self.head_size

    def visible(self, tokens: float) -> float:
        """How many of the last so many tokens are attended to."""
        return tokens if self.window is None else min(tokens, self.window)


@dataclass(frozen=True)
class ModelSize:
    """A model or a draft head by the numbers of its weights. Weights in int8 or int4 are computed in
    bfloat16."""

    num_layers: int
    hidden_size: int
    vocab: int
    matrices: float  # weights that every token is multiplied with, LM head included, experts not
    unmultiplied: float  # other weights, which only take memory: an embedding that is no LM head
    attention: Sequence[AttentionLayer]  # of the layers that have a KV cache
    expert_weights: float = 0.0  # weights of all experts of all layers
    num_experts: int = 0  # of a layer
    experts_per_token: int = 0
    dtype: str = "bfloat16"  # of activations, KV cache and embedding
    weights: str | None = None  # int8 or int4: compressed matrices; None: `dtype`

    @property
    def matrix_bytes(self) -> float:
        """Bytes of a weight of a matrix."""
        return BITS[self.weights or self.dtype] / 8

    @property
    def element_bytes(self) -> float:
        return BITS[self.dtype] / 8

    @property
    def weight_bytes(self) -> float:
        """Memory of all weights."""
        return (
            self.matrices + self.expert_weights
        ) * self.matrix_bytes + self.unmultiplied * self.element_bytes

    def kv_bytes(self, tokens: float) -> float:
        """Memory of the KV cache of one text; layers with a window keep the window."""
        return sum(each.visible(tokens) * each.kv_elements for each in self.attention) * self.element_bytes

    def experts_hit(self, tokens: float) -> float:
        """Share of the experts of a layer that so many tokens need, if each chooses independently."""
        if not self.num_experts:
            return 0.0
        return 1 - (1 - self.experts_per_token / self.num_experts) ** tokens
