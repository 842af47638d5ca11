"""The formulas of draft design, against closed forms."""

from __future__ import annotations

import pytest

from outpace.cost.step_time import (
    Choice,
    Needed,
    StepTime,
    best_length,
    expected_tokens,
    needed_rate,
    needed_tokens,
    relative_error,
)


def flat(tokens: float) -> float:
    return 10.0 + 0.5 * tokens


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_expected_tokens_are_a_geometric_series(rate: float, length: int) -> None:
    closed = length + 1 if rate == 1 else (1 - rate ** (length + 1)) / (1 - rate)
    assert expected_tokens([rate] * 5, length) == pytest.approx(closed)


def test_acceptance_differs_by_position() -> None:
    assert expected_tokens([0.9, 0.5, 0.2], 3) == pytest.approx(1 + 0.9 + 0.45 + 0.09)
    with pytest.raises(ValueError, match="up to position 3, not 4"):
        expected_tokens([0.9, 0.5, 0.2], 4)


def test_the_time_of_a_step_is_the_papers_sum() -> None:
    assert StepTime(2.0, flat)(3) == 3 * 2 + 12
    assert StepTime(2.0, flat, 0.25, 1.5)(4) == 4 * 2.25 + 12.5 + 1.5
    assert StepTime(2.0, flat, 0.25, 1.5)(0) == 12.0


def test_overhead_is_what_steps_take_besides_their_forwards() -> None:
    true, bare = StepTime(2.0, flat, 0.25, 1.5), StepTime(2.0, flat)
    found = bare.with_overhead([(8, true(8)), (1, true(1))])
    assert (found.token_overhead, found.step_overhead) == pytest.approx((0.25, 1.5))
    assert found(5) == pytest.approx(true(5))
    alone = bare.with_overhead([(4, true(4))])
    assert (alone.token_overhead, alone.step_overhead) == pytest.approx((0.0, 1.5 + 4 * 0.25))
    none = bare.with_overhead([(1, bare(1) - 1), (2, bare(2) - 2)])
    assert (none.token_overhead, none.step_overhead) == (0.0, 0.0)
    with pytest.raises(ValueError, match="measure some"):
        bare.with_overhead([])


@pytest.mark.parametrize("draft", [0.5, 2.0, 6.0, 40.0])
def test_the_best_length_is_the_one_by_brute_force(draft: float) -> None:
    acceptance, step = [0.8, 0.75, 0.7, 0.6, 0.5, 0.5], StepTime(draft, flat, 0.1, 0.5)
    found = best_length(acceptance, step, range(7))
    speeds = [expected_tokens(acceptance, length) / step(length) for length in range(7)]
    assert found.length == speeds.index(max(speeds)) and found.speed == max(speeds)
    if draft == 40.0:
        assert found.length == 0


def test_a_deeper_draft_that_accepts_more_loses_when_the_formula_says_so() -> None:
    shallow = best_length([0.6] * 8, StepTime(1.0, flat), range(9))
    deep = best_length([0.7] * 8, StepTime(4.0, flat), range(9))
    assert deep.speed < shallow.speed
    at_four = StepTime(4.0, flat)(shallow.length)
    assert expected_tokens([0.7] * 8, shallow.length) < needed_tokens(shallow, at_four)


def test_needed_tokens_make_it_as_fast() -> None:
    reference = Choice(4, 3.0, 20.0)
    needed = needed_tokens(reference, 30.0)
    assert needed == 4.5 and needed / 30.0 == pytest.approx(reference.speed)


@pytest.mark.parametrize("length", [1, 3, 8])
def test_the_needed_rate_inverts_the_series(length: int) -> None:
    for rate in (0.1, 0.5, 0.95):
        tokens = expected_tokens([rate] * length, length)
        assert needed_rate(tokens, length) == pytest.approx(rate)
    assert needed_rate(0.7, length) == 0 and needed_rate(length + 1, length) == pytest.approx(1)
    assert needed_rate(length + 1.01, length) is None


def test_the_length_that_needs_the_least_acceptance_is_found() -> None:
    reference, step = Choice(0, 1.0, flat(1)), StepTime(1.0, flat)
    found = Needed.least(reference, step, range(1, 7))
    rates = {n: needed_rate(needed_tokens(reference, step(n)), n) for n in range(1, 7)}
    assert found.rate == min(each for each in rates.values() if each is not None)
    assert found.rate == rates[found.length] and 0 < found.rate < 0.2
    hopeless = Needed.least(reference, StepTime(50.0, flat), range(1, 4))
    assert hopeless.rate is None and hopeless.tokens > hopeless.length + 1
    for choose in (lambda: Needed.least(reference, step, ()), lambda: best_length([], step, ())):
        with pytest.raises(ValueError, match="give at least one"):
            choose()


def test_errors_are_relative_to_what_was_measured() -> None:
    assert relative_error(1.1, 1.0) == pytest.approx(0.1) and relative_error(0.5, 1.0) == -0.5
