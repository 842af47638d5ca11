"""The token that a draft model reads in place of tokens that it is to draft."""

from __future__ import annotations

import warnings
from typing import Any

from outpace.core.contracts import Target

KEY = "pard_token"  # in `config.json`, as in the published models of PARD


def mask_token(draft: Target) -> int:
    """The mask in a draft model's configuration. If it names none, which a warning says, the last token of
    its vocabulary."""
    config: Any = getattr(getattr(draft, "model", None), "config", None)
    token = getattr(config, KEY, None)
    if token is None:
        warnings.warn(
            f"the draft model's config.json has no {KEY}, so few of its drafts may be accepted: train it "
            "with `outpace train pard`, or use speculative-sampling",
            stacklevel=2,
        )
        return draft.vocab - 1
    return int(token)
