"""Errors that concern one row of a step: the other rows can go on without it."""

from __future__ import annotations


class RowError(Exception):
    """Base class; `slot`: the slot of the row's request."""

    def __init__(self, slot: int, message: str) -> None:
        super().__init__(message)
        self.slot = slot


class NoTokenLeft(RowError, ValueError):
    """The sampling parameters exclude every token."""


class TextTooLong(RowError, ValueError):
    """The text is longer than a model of the method can read."""


def text_beyond_draft(slot: int, limit: int) -> TextTooLong:
    """The error of a method that needs its draft model after every token, where that reads `limit` tokens."""
    return TextTooLong(
        slot,
        f"the draft model reads texts of up to {limit} tokens, and this method needs it after every token: "
        "lower max_tokens, or use a draft model that reads more",
    )


class DraftFailed(RowError):
    """The drafter failed, and the method's distribution depends on it."""


class NotFinite(RowError, FloatingPointError):
    """The target's logits are NaN or infinite."""
