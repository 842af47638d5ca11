"""The token that ends a fragment of the text, in the configuration of a target that was trained to write it
(Xu et al. 2025)."""

from __future__ import annotations

import warnings
from typing import Any

from outpace.core.contracts import Target

KEY = "outpace_fragment_token"


def fragment_token(target: Target) -> int:
    """The token in the target's configuration. If that names none, which a warning says, the last one of its
    vocabulary."""
    config: Any = getattr(getattr(target, "model", None), "config", None)
    token = None if config is None else getattr(config.get_text_config(), KEY, None)
    if token is None:
        warnings.warn(
            f"the target's config.json has no {KEY}, so hardly any draft may be accepted: train a target "
            "with `outpace train syntax-aligned-medusa`, or use medusa-typical",
            stacklevel=2,
        )
        return target.vocab - 1
    return int(token)
