"""Percentiles, rates, goodput and ratios of constructed records."""

from __future__ import annotations

import pytest

from outpace.bench.load.load_level import RequestRate
from outpace.bench.load.objectives import Objectives
from outpace.bench.load.ratios import compare
from outpace.bench.load.record import RequestRecord
from outpace.bench.load.speculation import SpeculationCounters
from outpace.bench.load.summary import load_row, percentiles, summarise
from outpace.bench.load.turn import Turn

RATE = RequestRate(2.0)


def record(
    first: float, gap: float, chunks: int = 3, tokens: int | None = 5, **more: object
) -> RequestRecord:
    """A request with this time to first token and this gap between chunks, in seconds."""
    times = tuple(first + gap * index for index in range(chunks))
    fields = {"prompt": "p/0", "arrival": 0.0, "sent": 0.0, "latency": times[-1] + 0.5}
    return RequestRecord(**{**fields, "chunks": times, "output_tokens": tokens, **more})


def failure(reason: str) -> RequestRecord:
    return RequestRecord("p/0", 0.0, 0.0, 9.0, error=reason)


def turn(
    *records: RequestRecord, contender: str = "a", number: int = 0, seconds: float = 4.0, **more
) -> Turn:
    return Turn(contender, RATE, number, records, seconds, **more)


def test_percentiles_are_interpolated():
    found = percentiles([0.003, 0.001, 0.002, 0.005, 0.004])
    assert found is not None
    assert (found.p50, found.p95, found.p99) == pytest.approx((3.0, 4.8, 4.96), rel=1e-12)
    hundred = percentiles(number / 1000 for number in range(101))
    assert hundred is not None
    assert (hundred.p50, hundred.p95, hundred.p99) == pytest.approx((50.0, 95.0, 99.0), rel=1e-12)
    one = percentiles([0.25])
    assert one is not None and (one.p50, one.p95, one.p99) == (250.0, 250.0, 250.0)
    assert percentiles([]) is None


def test_a_row_covers_all_turns():
    first = turn(record(0.5, 0.25), record(1.5, 0.25), failure("HTTP 503"))
    row = load_row([first, turn(record(1.0, 0.25), number=1, seconds=2.0)], Objectives())
    assert (row.requests, row.failed, row.failures, row.rounds) == (4, 1, {"HTTP 503": 1}, 2)
    assert row.time_to_first_token and row.time_to_first_token.p50 == 1000.0
    assert row.inter_token_latency and row.inter_token_latency.p99 == 250.0
    assert row.time_per_output_token and row.time_per_output_token.p50 == 1000 * 0.5 / 4
    assert row.latency and row.latency.p50 == 2000.0
    assert row.requests_per_second == 3 / 6.0 and row.output_tokens_per_second == 15 / 6.0
    assert row.tokens_per_request == 5.0 and row.tokens_per_chunk == 15 / 9
    assert row.goodput is None


def test_every_gap_of_every_request_counts_once():
    row = load_row([turn(record(0.5, 0.1, chunks=2), record(0.5, 0.4, chunks=4))], Objectives())
    assert row.inter_token_latency and row.inter_token_latency.p50 == pytest.approx(400.0)


def test_the_delay_is_that_of_all_requests():
    late = record(0.5, 0.1, arrival=1.0, sent=1.25)
    row = load_row([turn(late, record(0.5, 0.1, arrival=None, sent=3.0))], Objectives())
    assert row.delay and (row.delay.p50, row.delay.p99) == pytest.approx((125.0, 247.5))


def test_goodput_counts_requests_within_the_objectives():
    records = [record(0.1, 0.02), record(0.1, 0.2), record(0.9, 0.02), failure("HTTP 503")]
    for objectives, good in (
        (Objectives(time_to_first_token=100.0), 2),
        (Objectives(inter_token_latency=50.0), 2),
        (Objectives(100.0, 50.0), 1),
        (Objectives(99.0, 50.0), 0),
    ):
        assert load_row([turn(*records)], objectives).goodput == good / 4.0


def test_the_objective_for_tokens_is_met_by_chunks_of_several_tokens():
    several = record(0.1, 0.06, chunks=3, tokens=9)  # 60 ms between chunks, 15 ms per token
    assert Objectives(inter_token_latency=20.0).met_by(several)


def test_an_unknown_number_of_tokens_is_not_guessed():
    row = load_row([turn(record(0.1, 0.02), record(0.1, 0.02, tokens=None))], Objectives(100.0, 50.0))
    assert (row.output_tokens_per_second, row.tokens_per_request, row.tokens_per_chunk) == (None,) * 3
    assert row.goodput is None
    assert load_row([turn(record(0.1, 0.02, tokens=None))], Objectives(100.0)).goodput == 1 / 4.0


def test_a_turn_in_which_everything_failed():
    row = load_row([turn(failure("a"), failure("b"))], Objectives(100.0))
    assert (row.failed, row.requests_per_second, row.goodput) == (2, 0.0, 0.0)
    assert row.latency is None and row.output_tokens_per_second is None


def test_counters_are_added():
    counted = SpeculationCounters(4, 8, 6, {0: 4, 1: 2})
    turns = [
        turn(record(0.1, 0.1), speculation=counted),
        turn(record(0.1, 0.1), number=1, speculation=counted),
    ]
    found = load_row(turns, Objectives()).speculation
    assert found == SpeculationCounters(8, 16, 12, {0: 8, 1: 4})
    assert (found.acceptance_rate, found.mean_acceptance_length) == (0.75, 2.5)
    assert found.acceptance_by_position == [1.0, 0.5]


def test_rows_are_in_the_order_of_the_contenders():
    turns = [turn(record(0.1, 0.1), contender=name) for name in ("b", "a")]
    assert [row.contender for row in summarise(turns, ["a", "b"], Objectives())] == ["a", "b"]


def paired(rounds: int, **more) -> list[Turn]:
    """Of b every latency is half of a's, except its time to first token, which is 1.5 times as long."""
    return [
        each
        for number in range(rounds)
        for each in (
            turn(record(1.0, 0.2, latency=4.0), number=number),
            turn(record(1.5, 0.1, latency=2.0), contender="b", number=number, seconds=2.0, **more),
        )
    ]


def test_ratios_are_of_turns_of_one_round():
    [row] = compare(paired(4), ["a", "b"], Objectives(2000.0), seed=0)
    assert (row.contender, row.reference, row.level, row.rounds) == ("b", "a", RATE, 4)
    medians = {name: ratio.median for name, ratio in row.ratios.items() if ratio}
    assert medians == pytest.approx(
        {
            "time_to_first_token": 1.5,
            "inter_token_latency": 0.5,
            "time_per_output_token": 0.5,
            "latency": 0.5,
            "output_tokens_per_second": 2.0,
            "goodput": 2.0,
        }
    )
    assert all(ratio and ratio.low == pytest.approx(ratio.high) for ratio in row.ratios.values())


def test_ratios_need_complete_turns_and_intervals_three_rounds():
    assert not compare(paired(2, complete=False), ["a", "b"], Objectives(), seed=0)
    [row] = compare(paired(2), ["a", "b"], Objectives(), seed=0)
    assert row.ratios["latency"] and not row.ratios["latency"].known
    assert row.ratios["goodput"] is None


def test_a_round_without_a_ratio_leaves_it_out():
    turns = [*paired(3), turn(record(1.0, 0.2), number=3), turn(failure("x"), contender="b", number=3)]
    [row] = compare(turns, ["a", "b"], Objectives(), seed=0)
    assert row.rounds == 4 and row.ratios["latency"] is None
