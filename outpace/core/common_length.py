"""How far two texts agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # sampling parameters are imported without torch
    from torch import Tensor

# Texts are compared part by part until one differs: parts end after FIRST tokens, GROWTH times as many,
# and so on. The prefix cache compares hundreds of texts, most of which differ early.
FIRST, GROWTH = 64, 8


def common_length(one: Tensor, other: Tensor) -> int:  # (T,), (U,), on the host
    """Number of tokens at the beginning of both texts that are the same."""
    # in numpy, since calling a function of torch takes longer than comparing so few tokens
    these, those, size = one.numpy(), other.numpy(), min(len(one), len(other))
    begin, end = 0, FIRST
    while begin < size:
        differs = these[begin : min(end, size)] != those[begin : min(end, size)]
        first = int(differs.argmax())
        if differs[first]:
            return begin + first
        begin, end = end, GROWTH * end
    return size
