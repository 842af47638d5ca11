"""Tokens that a draft model reads in place of tokens that it is to draft, or behind them."""

from __future__ import annotations

import warnings
from typing import Any

from outpace.core.contracts import Target

# names in `config.json`: of the mask that is read causally, as in the published models of PARD; of the mask
# of a window that is read two ways; and of the token behind a window
KEY, WINDOW_MASK, WINDOW_END = "pard_token", "mask_token_id", "sep_token_id"


def token_of(draft: Target, given: int | None, option: str, key: str, method: str) -> int:
    """The token `given` as a method's option; None: the one that the draft model's configuration names `key`.
    If it names none, which a warning says, the last token of the vocabulary. ValueError for a token that the
    draft model does not have."""
    config: Any = getattr(getattr(draft, "model", None), "config", None)
    token = getattr(config, key, None) if given is None else given
    if token is None:
        warnings.warn(
            f"the draft model's config.json has no {key}, so few of its drafts may be accepted: train it "
            f"with `outpace train {method}`, or use speculative-sampling",
            stacklevel=2,
        )
        return draft.vocab - 1
    # a draft model may have more tokens than its target: those are read, but never drafted
    size = getattr(draft, "own_vocab", draft.vocab)
    if not 0 <= token < size:
        raise ValueError(f"{option} is {token}, but the tokens are 0 to {size - 1}: give one of these")
    return int(token)
