"""Argmax and top-k of each row of a matrix; of equal values the first is chosen.

On a CPU they are computed by numpy: its argmax is 8 to 40 times faster than torch's (rows of 4,096 to 150,000
values, x86-64), a measurable part of a small model's step. The largest of wide rows are looked for in the
blocks with the largest maxima.

Letters: M rows of K values.
"""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

WIDE = 2500  # M * K / count from which repeated numpy argmax is faster than torch's topk
VERY_WIDE = 1 << 18  # M * K from which only blocks are searched; smaller ones are not worth choosing them
BLOCK = 128  # values


def largest(values: Tensor) -> tuple[list[float], list[int]]:  # (M, K) -> M, M
    """The largest value of each row (NaN if the row has one) and its index, on the host."""
    values = at_least_float32(values)
    if not values.is_cpu:
        found = values.max(-1)
        return found.values.tolist(), found.indices.tolist()
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
    if values.is_cpu and values.numel() > WIDE * count:
        columns = _candidates(values, count) if values.numel() > VERY_WIDE else None
        among = values if columns is None else values.gather(1, columns)
        best, indices = _by_argmax(among, count)
        if bool((best > -torch.inf).all()):  # else an index may occur twice, or a row has NaN
            return best, indices if columns is None else columns.gather(1, indices)
    found = values.topk(count)
    return found.values, found.indices


def _candidates(values: Tensor, count: int) -> Tensor | None:  # (M, K) -> (M, C)
    """Columns among which the `count` largest values of each row are: those of the `count` blocks with the
    largest maxima, and those behind the last whole block. None: all columns, as there are few blocks, or few
    with a value above -inf."""
    num_rows, width = values.shape
    num_blocks = width // BLOCK
    if num_blocks < 2 * count:
        return None
    end = num_blocks * BLOCK
    maxima = values[:, :end].view(num_rows, num_blocks, BLOCK).amax(-1)
    best, blocks = _by_argmax(maxima, count)
    if not bool((best > -torch.inf).all()):
        return None
    blocks = blocks.sort(-1).values  # so that of equal values the first is found
    columns = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    return torch.cat((columns, torch.arange(end, width).expand(num_rows, -1)), 1)


def _by_argmax(values: Tensor, count: int) -> tuple[Tensor, Tensor]:  # (M, C) -> (M, count), (M, count)
    """The largest values of each row, one after the other, and their indices. Where fewer than `count` values
    are above -inf, an index may occur twice."""
    left = values.detach().numpy().copy()
    rows = numpy.arange(len(left))
    indices = numpy.empty((len(left), count), numpy.int64)
    best = numpy.empty((len(left), count), left.dtype)
    for rank in range(count):
        indices[:, rank] = at = left.argmax(-1)
        best[:, rank] = left[rows, at]
        left[rows, at] = -numpy.inf
    return torch.from_numpy(best), torch.from_numpy(indices)


def at_least_float32(values: Tensor) -> Tensor:
    """The values in float32 or float64: comparisons in half precision are several times slower on a CPU."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()
