"""How many tokens forwards with padding compute."""

from __future__ import annotations

import numpy

from outpace.cost.linear_cost import Numbers


def padded(tokens: Numbers, sizes: Numbers) -> Numbers:  # (M,), (S,) -> (M,)
    """Numbers of tokens that forwards over `tokens` tokens compute, padding included; `sizes` as in
    core.contracts.Target.sizes. A single tree above the last size is padded more, which is left out here."""
    if not len(sizes):
        return tokens
    rest = tokens % sizes[-1]
    return tokens - rest + numpy.where(rest > 0, sizes[numpy.searchsorted(sizes[:-1], rest)], 0)
