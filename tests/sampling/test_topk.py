"""argmax and top-k by numpy on a CPU equal those of torch for all numbers."""

from __future__ import annotations

from math import isnan

import pytest
import torch

from outpace.sampling.topk import WIDE, WIDE_ROW, argmax, largest, top

INFINITE = float("inf")


@pytest.mark.parametrize("width", [WIDE, WIDE_ROW + 77])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_largest_are_those_that_torch_finds(dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(0)
    values = torch.randn(7, width).to(dtype)
    values[3, -1] = 9.0  # behind the last whole block
    best, places = largest(values)
    assert best == values.max(-1).values.tolist() == values[range(7), places].tolist()
    assert argmax(values).tolist() == places
    for count in (1, 3, 8, 300):
        found, places = top(values, count)
        assert torch.equal(found.to(dtype), values.topk(count).values)
        assert torch.equal(values.gather(1, places), found.to(dtype))
        assert all(len(set(row)) == count for row in places.tolist())


@pytest.mark.parametrize("width", [4 * WIDE, 2 * WIDE_ROW])
def test_of_equal_numbers_the_first(width: int) -> None:
    values = torch.zeros(2, width)
    values[0, 1:4] = torch.tensor([3.0, 3.0, 2.0])
    assert largest(values)[1] == argmax(values).tolist() == [1, 0]
    assert top(values, 3)[1].tolist() == [[1, 2, 3], [0, 1, 2]]
    values[1, [700, 900]] = 1.0
    assert top(values, 4)[1].tolist() == [[1, 2, 3, 0], [700, 900, 0, 1]]


@pytest.mark.parametrize("width", [4 * WIDE, 2 * WIDE_ROW])
def test_no_index_is_returned_twice(width: int) -> None:
    values = torch.full((2, width), -INFINITE)
    values[0, 3] = 1.0
    values[1, 1:4] = torch.tensor([2.0, INFINITE, 0.0])
    found, places = top(values, 4)
    assert [len(set(row)) for row in places.tolist()] == [4, 4]
    assert found[:, 0].tolist() == [1.0, INFINITE] and places[:, 0].tolist() == [3, 2]


@pytest.mark.parametrize("width", [4 * WIDE, WIDE_ROW + 5])
def test_what_is_no_number_is_the_largest(width: int) -> None:
    values = torch.zeros(1, width)
    for place in (7, width - 1):
        values[:] = 0.0
        values[0, place] = float("nan")
        assert isnan(largest(values)[0][0]) and argmax(values).tolist() == [place]
        assert top(values, 2)[0].isnan().any()


def test_what_is_given_stays_as_it_is() -> None:
    values = torch.randn(3, 4 * WIDE, requires_grad=True)
    before = values.detach().clone()
    largest(values), argmax(values), top(values, 4)
    assert torch.equal(values.detach(), before)
