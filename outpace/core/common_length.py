"""How far two texts agree."""

from __future__ import annotations

from torch import Tensor

# Tokens that are compared first, and the factor by which the next part is longer: texts that differ early, of
# which the prefix cache compares hundreds, are not compared to their ends.
FIRST, GROWTH = 64, 8


def common_length(one: Tensor, other: Tensor) -> int:  # (T,), (U,), on the host
    """Number of tokens at the beginning of both texts that are the same."""
    # in numpy: calls of torch take longer than comparing a part
    these, those, size = one.numpy(), other.numpy(), min(len(one), len(other))
    begin, end = 0, FIRST
    while begin < size:
        differs = these[begin : min(end, size)] != those[begin : min(end, size)]
        first = int(differs.argmax())
        if differs[first]:
            return begin + first
        begin, end = end, GROWTH * end
    return size
