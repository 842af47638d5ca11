"""The fingerprint of a draft head, by which a predictor trained with the head recognises it."""

from __future__ import annotations

from outpace.models.fingerprint import fingerprint_of
from outpace.models.heads.draft_head import DraftHead


def head_fingerprint(head: DraftHead) -> str:
    """SHA-256 of a head's sizes and of a few of its own weights, as for targets; for a head from a folder, of
    the weights in the file."""
    return head.fingerprint or fingerprint_of(head.own.values(), head.config)
