"""KV entries in 8 bits, as OpenVINO's paged attention stores them: quantized per token and head.

A row of D + 8 bytes holds scale and zero point (float32) and D integers x, which stand for (x - zero point) ×
scale. It depends on one token alone, so entries can be moved, and rejected draft nodes have no effect on
others.

Letters: D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

FORMATS = ("int8",)
NUM_BYTES = 8  # of scale and zero point
LARGEST = 255  # integer
LEAST_SCALE = 1e-4  # scale of entries whose numbers are all equal


def to_rows(entries: Tensor) -> Tensor:  # (..., D) -> (..., D + 8) uint8
    """The rows of bytes that hold these keys or values."""
    wide = entries.float()
    low, high = wide.amin(-1, keepdim=True), wide.amax(-1, keepdim=True)
    scale = (high - low) / LARGEST
    scale = torch.where(scale == 0, torch.full_like(scale, LEAST_SCALE), scale)
    zero = -low / scale
    numbers = (wide / scale + zero).round().clamp(0, LARGEST).to(torch.uint8)
    return torch.cat((torch.cat((scale, zero), -1).view(torch.uint8), numbers), -1)


def from_rows(rows: Tensor, dtype: torch.dtype) -> Tensor:  # (..., D + 8) uint8 -> (..., D)
    """The keys or values that these rows of bytes hold."""
    scale, zero = rows[..., :NUM_BYTES].contiguous().view(torch.float32).split(1, -1)
    return ((rows[..., NUM_BYTES:].float() - zero) * scale).to(dtype)


def rounded(entries: Tensor) -> Tensor:  # (..., D)
    """These keys or values after rounding to 8 bits."""
    return from_rows(to_rows(entries), entries.dtype)
