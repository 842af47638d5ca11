"""Helpers that read a text which may not be complete."""

from __future__ import annotations

import re

BLANKS = re.compile(r"\s*")
SEPARATORS = re.compile(r"[\s,;]*")  # between several calls in JSON


def behind(pattern: re.Pattern[str], text: str, place: int) -> int:
    """Where what the pattern matches at a place of the text ends; the place itself if it does not match."""
    found = pattern.match(text, place)
    return place if found is None else found.end()


def may_begin(text: str, *tags: str) -> bool:
    """Whether the text, or the text with what follows it, begins with one of the tags."""
    return any(text.startswith(tag) or tag.startswith(text) for tag in tags)
