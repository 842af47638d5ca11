"""The error for a draft model whose logits are not numbers."""

from __future__ import annotations

from torch import Tensor


def check_logits(logits: Tensor, cause: Exception | None = None) -> None:
    """Raise ValueError for NaN or +inf among the logits; -inf is allowed, since it masks a token."""
    if not float(logits.amax()) < float("inf"):
        raise ValueError(
            "the draft model gave NaN or infinite logits: load it in another dtype, such as float32, or use "
            "another draft"
        ) from cause
