"""Argmax and top-k of each row of a matrix; of equal values the first is chosen.

On a CPU they are computed by numpy: its argmax is 8 to 40 times faster than torch's (rows of 4,096 to 150,000
values, x86-64), a measurable part of a small model's step. Of wide rows only values are sorted that are as
large as the `count`-th largest maximum of a block (`python -m benchmarks.sampling`).

Letters: M rows of K values.
"""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

from outpace.core.device_copies import on_host

WIDE = 2500  # M * K / count from which repeated numpy argmax is faster than torch's topk
WIDE_ROW = 1 << 14  # values of a row from which blocks are faster than both
BLOCK = 128  # values


def largest(values: Tensor) -> tuple[list[float], list[int]]:  # (M, K) -> M, M
    """The largest value of each row (NaN if the row has one) and its index, on the host."""
    values = at_least_float32(values)
    if not values.is_cpu:
        found = on_host(*values.max(-1))
        return found[0].tolist(), found[1].tolist()
    numbers = values.detach().numpy()
    indices = numbers.argmax(-1).tolist()
    return [numbers.item(row, index) for row, index in enumerate(indices)], indices


def argmax(values: Tensor) -> Tensor:  # (M, K) -> (M,) int64
    """The index of the largest value of each row."""
    values = at_least_float32(values)
    if not values.is_cpu:
        return values.argmax(-1)
    return torch.from_numpy(values.detach().numpy().argmax(-1))


def top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:  # (M, K) -> (M, count), (M, count) int64
    """The `count` largest values of each row in decreasing order, and their indices."""
    values = at_least_float32(values)
    if values.is_cpu:
        found = None
        if values.shape[1] >= WIDE_ROW and count <= values.shape[1] // BLOCK:
            found = _top_by_blocks(values, count)
        elif values.numel() > WIDE * count:
            found = _top_by_argmax(values, count)
        if found is not None:
            return found
    found = values.topk(count)
    return found.values, found.indices


def _top_by_argmax(values: Tensor, count: int) -> tuple[Tensor, Tensor] | None:
    """`top` by one argmax after the other; None if a row has NaN or fewer than `count` values above -inf."""
    left = values.detach().numpy().copy()
    rows = numpy.arange(len(left))
    indices, best = (
        numpy.empty((len(left), count), numpy.int64),
        numpy.empty((len(left), count), left.dtype),
    )
    for rank in range(count):
        indices[:, rank] = at = left.argmax(-1)
        best[:, rank] = left[rows, at]
        left[rows, at] = -numpy.inf
    if not (best > -numpy.inf).all():
        return None
    return torch.from_numpy(best), torch.from_numpy(indices)


def _top_by_blocks(values: Tensor, count: int) -> tuple[Tensor, Tensor] | None:
    """`top` for wide rows, from the maxima of their blocks: `count` values are at least as large as the
    `count`-th largest maximum, so only these are sorted. None if a row has NaN or fewer than `count` blocks
    with a value above -inf."""
    num_rows, width = values.shape
    num_blocks = width // BLOCK
    end = num_blocks * BLOCK
    maxima = values[:, :end].view(num_rows, num_blocks, BLOCK).amax(-1).detach().numpy()
    limits = numpy.partition(maxima, num_blocks - count, axis=-1)[:, num_blocks - count]
    numbers = values.detach().numpy()
    has_nan = numpy.isnan(maxima).any() or numpy.isnan(numbers[:, end:]).any()
    if has_nan or not (limits > -numpy.inf).all():
        return None
    best = numpy.empty((num_rows, count), maxima.dtype)
    indices = numpy.empty((num_rows, count), numpy.int64)
    in_block, rest = numpy.arange(BLOCK), numpy.arange(end, width)
    for row, limit in enumerate(limits):
        blocks = (maxima[row] >= limit).nonzero()[0]
        columns = numpy.concatenate(((blocks[:, None] * BLOCK + in_block).ravel(), rest))
        columns = columns[numbers[row, columns] >= limit]
        # of equal values the first is chosen, as columns are in order
        indices[row] = columns[numpy.argsort(-numbers[row, columns], kind="stable")[:count]]
        best[row] = numbers[row, indices[row]]
    return torch.from_numpy(best), torch.from_numpy(indices)


def at_least_float32(values: Tensor) -> Tensor:
    """The values in float32 or float64: comparisons in half precision are several times slower on a CPU."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()
