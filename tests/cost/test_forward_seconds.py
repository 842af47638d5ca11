"""The model of forwards that is fitted to a few of them."""

from __future__ import annotations

import pytest

from outpace.cost.forward_seconds import MeasuredForwards


def true(tokens: float, rows: int, context: float) -> float:
    """Kernels change at 8 tokens; each row and each cached token cost something."""
    kernels = 0.1 * tokens if tokens < 8 else 0.8 + 0.3 * (tokens - 8)
    return 5 + kernels + 0.2 * (rows - 1) + 0.001 * rows * context


def test_cells_that_were_not_measured_are_predicted() -> None:
    alone = [(tokens, 1, 200) for tokens in (1, 2, 4, 7, 8, 16, 32, 64)]
    cells = [*alone, (8, 8, 200), (32, 8, 200), (8, 8, 100), (1, 1, 100)]
    found = MeasuredForwards.fit({cell: true(*cell) for cell in cells})
    assert (found.row, found.cached) == pytest.approx((0.2, 0.001))
    for cell in ((3, 1, 150), (12, 4, 200), (40, 5, 300), (6, 2, 50)):
        assert found(*cell) == pytest.approx(true(*cell))


def test_one_row_alone_says_nothing_of_more() -> None:
    found = MeasuredForwards.fit({(1, 1, 50): 2.0, (4, 1, 50): 3.0})
    assert (found.row, found.cached) == (0, 0) and found(4, 2, 90) == 3.0
    with pytest.raises(ValueError, match="measure some with one row"):
        MeasuredForwards.fit({(2, 2, 50): 1.0})


def test_forwards_with_padding_cost_what_they_compute() -> None:
    found = MeasuredForwards.fit({(tokens, 1, 9): float(tokens) for tokens in (1, 4, 8)}, (4, 8), (1, 8))
    assert [found(tokens, 1, 9) for tokens in (1, 2, 8)] == [1.0, 8.0, 8.0]  # a chain of one row
    assert [found(tokens, 3, 3) for tokens in (3, 5)] == [4.0, 8.0]
