"""Argmax and top-k of each row of a matrix; of equal values the first is chosen.

On a CPU they are computed by numpy: its argmax is 8 to 40 times faster than torch's (rows of 4,096 to 150,000
values, x86-64), a measurable part of a small model's step.

Letters: M rows of K values.
"""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

WIDE = 2500  # M * K / count from which repeated numpy argmax is faster than torch's topk


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
        if (best > -numpy.inf).all():  # else an index may occur twice, or a row has NaN
            return torch.from_numpy(best), torch.from_numpy(indices)
    found = values.topk(count)
    return found.values, found.indices


def at_least_float32(values: Tensor) -> Tensor:
    """The values in float32 or float64: comparisons in half precision are several times slower on a CPU."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()
