"""The logits of a transformers model at all positions of a text, without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def plain_logits(target: Any, text: Sequence[int]) -> Tensor:  # (T, V)
    """Float64 logits at all positions of a text, computed by the transformers model of an HFTarget without KV
    cache."""
    with torch.inference_mode():
        logits = target.model(torch.tensor([list(text)], device=target.device), use_cache=False).logits[0]
    return logits.double().cpu()
