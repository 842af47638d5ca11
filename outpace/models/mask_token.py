"""The token that a draft model reads in place of tokens that it is to draft."""

from __future__ import annotations

from typing import Any

from outpace.core.contracts import Target

KEY = "pard_token"  # in `config.json`, as in the published models of PARD


def mask_token(draft: Target) -> int:
    """The mask in a draft model's configuration. ValueError if it names none."""
    config: Any = getattr(getattr(draft, "model", None), "config", None)
    token = getattr(config, KEY, None)
    if token is None:
        raise ValueError(
            f"the draft model's config.json has no {KEY}, the token that stands for tokens to draft: train "
            "the model with `outpace train pard`, give the option mask, or use speculative-sampling"
        )
    return int(token)
