"""Suffix sorting of a sequence of tokens."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
EMPTY = np.zeros(0, np.int32)


def sort_suffixes(text: Ints) -> Ints:
    """(n,) positions of a text (tokens >= -1), sorted by the suffix that begins there.

    With pydivsufsort in linear time, else by prefix doubling.
    """
    return by_bytes(text) if find_spec("pydivsufsort") else by_doubling(text)


def by_bytes(text: Ints) -> Ints:
    """Suffix array by pydivsufsort over the big-endian bytes of the tokens, which preserves the order;
    suffixes that begin within a token are dropped."""
    from pydivsufsort import divsufsort

    highest = int(text.max(initial=0)) + 1
    width = (highest.bit_length() + 7) // 8
    data = np.ascontiguousarray(
        (text + 1).astype(">u4").view(np.uint8).reshape(-1, 4)[:, 4 - width :]
    ).ravel()
    if not len(data):
        return EMPTY
    sorted_bytes = divsufsort(data)
    positions, size = np.empty(len(text), np.int32), 0
    for start in range(0, len(data), 1 << 20):
        part = sorted_bytes[start : start + (1 << 20)]
        part = part[part % width == 0] // width
        positions[size : size + len(part)] = part
        size += len(part)
    return positions


def by_doubling(text: Ints) -> Ints:
    """Suffix array by prefix doubling: sort by the first 1, 2, 4, ... tokens until all ranks differ."""
    ranks, size, known = text.astype(np.int64) + 2, len(text), 1
    while True:
        later = np.zeros(size, np.int64)
        later[: max(size - known, 0)] = ranks[known:]
        keys = ranks * (int(ranks.max(initial=0)) + 1) + later
        order = np.argsort(keys, kind="stable")
        steps = np.flatnonzero(np.diff(keys[order])) + 1
        if len(steps) >= size - 1:
            return order.astype(np.int32)
        ranks = np.empty(size, np.int64)
        ranks[order] = np.searchsorted(steps, np.arange(size), side="right") + 1
        known *= 2
