"""The largest numbers of each row; of equal ones the first.

On a CPU numpy looks for them: one thread of it finds the largest of a row 12 to 40 times faster than torch
does (rows of 4,096 to 150,000 numbers, x86-64), which shows beside the forward of a small model.

Letters: M rows of K numbers.
"""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

FEW = 8192  # numbers, of which torch finds the largest sooner than it hands them to numpy
WIDE = 2500  # numbers for each one that is looked for, from which searches in turn are faster than selecting at once


def largest(values: Tensor) -> tuple[list[float], list[int]]:  # (M, K) -> M, M
    """The largest number of each row, NaN where there is one, and where it stands: on the host."""
    values = at_least_float32(values)
    if not values.is_cpu or values.numel() < FEW:
        found = values.max(-1)
        return found.values.tolist(), found.indices.tolist()
    numbers = values.detach().numpy()
    places = numbers.argmax(-1).tolist()
    return [numbers.item(row, place) for row, place in enumerate(places)], places


def argmax(values: Tensor) -> Tensor:  # (M, K) -> (M,) int64
    """Where the largest number of each row stands."""
    values = at_least_float32(values)
    if not values.is_cpu or values.numel() < FEW:
        return values.argmax(-1)
    return torch.from_numpy(values.detach().numpy().argmax(-1))


def top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:  # (M, K) -> (M, count), (M, count) int64
    """The `count` largest numbers of each row, falling, and where they stand."""
    values = at_least_float32(values)
    if values.is_cpu and values.numel() > WIDE * count:
        left = values.detach().numpy().copy()
        rows = numpy.arange(len(left))
        places, best = (
            numpy.empty((len(left), count), numpy.int64),
            numpy.empty((len(left), count), left.dtype),
        )
        for rank in range(count):
            places[:, rank] = at = left.argmax(-1)
            best[:, rank] = left[rows, at]
            left[rows, at] = -numpy.inf
        if (best > -numpy.inf).all():  # else a place may have been found twice; so may NaN
            return torch.from_numpy(best), torch.from_numpy(places)
    found = values.topk(count)
    return found.values, found.indices


def at_least_float32(values: Tensor) -> Tensor:
    """At least float32: half precision is compared several times slower on a CPU."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()
