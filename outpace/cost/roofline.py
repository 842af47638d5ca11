"""Seconds of a forward from a model's sizes and a device's peaks (Williams et al. 2009).

Matrices and attention are separate: at a long context one of them may wait for memory while the other one
computes."""

from __future__ import annotations

from dataclasses import dataclass

from outpace.cost.hardware import Hardware
from outpace.cost.model_size import ModelSize

ACTIVATIONS = 16  # numbers that a layer reads and writes for a token, in hidden sizes
LOGIT_BYTES = 12  # of each logit: written, and read as float32 for sampling and for verification


@dataclass(frozen=True)
class Roofline:
    """Seconds of forwards of one model on one device."""

    size: ModelSize
    device: Hardware

    def __call__(self, tokens: float, rows: int, context: float) -> float:
        """A forward over `tokens` tokens of all `rows` rows together, each with `context` committed
        tokens."""
        return self.matrices(tokens) + self.attention(tokens, rows, context) + self.launching

    @property
    def launching(self) -> float:
        return self.size.num_layers * self.device.launch_seconds

    @property
    def ridge(self) -> float:
        """Tokens of a forward up to which its matrices wait for memory."""
        bandwidth, flops = self._reached
        return flops * self.size.matrix_bytes / (2 * bandwidth)

    @property
    def _reached(self) -> tuple[float, float]:
        device = self.device
        return (
            device.bandwidth * device.bandwidth_reached,
            device.flops_of(self.size.dtype) * device.flops_reached,
        )

    def matrices(self, tokens: float) -> float:
        """Of all linear layers: weights and activations are read, every weight is multiplied with every
        token."""
        size = self.size
        bandwidth, flops = self._reached
        experts = size.expert_weights * size.experts_hit(tokens)
        used = size.expert_weights * size.experts_per_token / size.num_experts if size.num_experts else 0.0
        moved = (size.matrices + experts) * size.matrix_bytes
        moved += tokens * size.num_layers * size.hidden_size * ACTIVATIONS * size.element_bytes
        return max(moved / bandwidth, 2 * tokens * (size.matrices + used) / flops)

    def attention(self, tokens: float, rows: int, context: float) -> float:
        """Of all layers: keys and values of every row are read, queries are multiplied with keys and with
        values."""
        size = self.size
        bandwidth, flops = self._reached
        seconds = 0.0
        for layer in size.attention:
            visible = layer.visible(context + tokens / rows)
            moved = rows * visible * layer.kv_elements * size.element_bytes
            seconds += max(
                moved / bandwidth, 4 * tokens * visible * layer.num_heads * layer.head_size / flops
            )
        return seconds

    def sampling(self, tokens: float) -> float:
        """Seconds in which the logits of so many tokens become distributions and choices."""
        return tokens * self.size.vocab * LOGIT_BYTES / self._reached[0]
