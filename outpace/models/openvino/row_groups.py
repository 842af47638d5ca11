"""Divides the tokens of several rows among forwards of limited size."""

from __future__ import annotations

from outpace.models.openvino.request_inputs import RowTokens
from outpace.models.openvino.size_policy import MAX_TOKENS


def group_rows(parts: list[RowTokens]) -> list[list[RowTokens]]:
    """Divide the rows' tokens among forwards in which no row occurs twice. A forward has at most `MAX_TOKENS`
    tokens; longer chains are split, and a larger tree has a forward of its own."""
    groups: list[list[RowTokens]] = []
    remaining = 0
    for part in parts:
        for piece in _pieces(part, remaining):
            size = len(piece.tokens)
            if size > remaining or not groups or groups[-1][-1].slot == piece.slot:
                groups.append([])
                remaining = MAX_TOKENS
            groups[-1].append(piece)
            remaining -= size
    return groups


def _pieces(part: RowTokens, remaining: int) -> list[RowTokens]:
    """The tokens of one row; a chain of more than `remaining` tokens is split into a first piece of
    `remaining` tokens (if 0: of MAX_TOKENS) and further pieces of at most MAX_TOKENS."""
    total = len(part.tokens)
    if part.seen is not None or total <= remaining:
        return [part]
    bounds, at = [0], remaining if remaining else min(total, MAX_TOKENS)
    while at < total:
        bounds.append(at)
        at += MAX_TOKENS
    bounds.append(total)
    pieces = []
    for start, end in zip(bounds, bounds[1:], strict=False):
        num = max(0, min(end, total) - max(start, total - part.num))
        inside = slice(start, end)
        states = None if part.features is None else part.features[inside]
        pieces.append(
            RowTokens(
                part.slot,
                part.start + start,
                part.tokens[inside],
                part.positions[inside],
                None,
                num,
                states,
            )
        )
    return pieces
