"""Percentiles, rates and ratios of constructed records."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.load.plan import LoadLevel
from benchmarks.load.report import failures, tables
from benchmarks.load.request import RequestRecord
from benchmarks.load.speculation import SpeculationCounters
from benchmarks.load.summary import compare, load_row, percentiles, summarise
from benchmarks.load.turn import Turn
from outpace.tables import markdown

RATE = LoadLevel(2.0, False)


def record(first: float, gap: float, chunks: int = 3, tokens: int = 5, **more: Any) -> RequestRecord:
    """A request with this time to first token and this gap between chunks, in seconds."""
    times = tuple(first + gap * index for index in range(chunks))
    fields = {"arrival": 0.0, "sent": 0.0, "latency": times[-1] + 0.5}
    return RequestRecord(**{**fields, "chunks": times, "output_tokens": tokens, **more})


def failure(reason: str) -> RequestRecord:
    return RequestRecord(0.0, 0.0, 9.0, error=reason)


def turn(
    *records: RequestRecord, contender: str = "a", number: int = 0, seconds: float = 4.0, **more: Any
) -> Turn:
    return Turn(contender, RATE, number, records, seconds, **more)


def test_percentiles_are_interpolated() -> None:
    found = percentiles([0.003, 0.001, 0.002, 0.005, 0.004])
    assert found is not None
    assert (found.p50, found.p95, found.p99) == pytest.approx((3.0, 4.8, 4.96), rel=1e-12)
    assert percentiles([]) is None


def test_a_row_covers_all_turns() -> None:
    first = turn(record(0.5, 0.25), record(1.5, 0.25), failure("HTTP 503"))
    row = load_row([first, turn(record(1.0, 0.25), number=1, seconds=2.0)])
    assert (row.requests, row.failed, row.failures, row.rounds) == (4, 1, {"HTTP 503": 1}, 2)
    assert row.time_to_first_token_ms and row.time_to_first_token_ms.p50 == 1000.0
    assert row.time_per_output_token_ms and row.time_per_output_token_ms.p50 == 1000 * 0.5 / 4
    assert row.latency_ms and row.latency_ms.p50 == 2000.0
    assert row.requests_per_second == 3 / 6.0 and row.output_tokens_per_second == 15 / 6.0
    assert failures([row]) == ["a, 2 requests/s: 1 of 4 requests failed: HTTP 503"]


def test_the_delay_is_that_of_all_requests() -> None:
    late = record(0.5, 0.1, arrival=1.0, sent=1.25)
    row = load_row([turn(late, record(0.5, 0.1, arrival=None, sent=3.0))])
    assert row.delay_ms and (row.delay_ms.p50, row.delay_ms.p99) == pytest.approx((125.0, 247.5))


def test_a_turn_in_which_everything_failed() -> None:
    row = load_row([turn(failure("a"), failure("b"))])
    assert (row.failed, row.requests_per_second, row.output_tokens_per_second) == (2, 0.0, 0.0)
    assert row.latency_ms is None


def test_counters_are_added() -> None:
    counted = SpeculationCounters(4, 8, 6)
    turns = [
        turn(record(0.1, 0.1), speculation=counted),
        turn(record(0.1, 0.1), number=1, speculation=counted),
    ]
    assert load_row(turns).speculation == SpeculationCounters(8, 16, 12)


def test_rows_are_in_the_order_of_the_contenders() -> None:
    turns = [turn(record(0.1, 0.1), contender=name) for name in ("b", "a")]
    assert [row.contender for row in summarise(turns, ["a", "b"])] == ["a", "b"]


def paired(rounds: int) -> list[Turn]:
    """Of b every latency is half of a's, except its time to first token, which is 1.5 times as long."""
    return [
        each
        for number in range(rounds)
        for each in (
            turn(record(1.0, 0.2, latency=4.0), number=number),
            turn(record(1.5, 0.1, latency=2.0), contender="b", number=number, seconds=2.0),
        )
    ]


def test_ratios_are_of_turns_of_one_round() -> None:
    [row] = compare(paired(4), ["a", "b"], seed=0)
    assert (row.contender, row.reference, row.level, row.rounds) == ("b", "a", RATE, 4)
    medians = {name: ratio.median for name, ratio in row.ratios.items() if ratio}
    assert medians == pytest.approx(
        {
            "time_to_first_token": 1.5,
            "time_per_output_token": 0.5,
            "latency": 0.5,
            "output_tokens_per_second": 2.0,
        }
    )
    assert all(ratio and ratio.low == pytest.approx(ratio.high) for ratio in row.ratios.values())


def test_intervals_need_three_rounds() -> None:
    [row] = compare(paired(2), ["a", "b"], seed=0)
    assert row.ratios["latency"] and not row.ratios["latency"].known


def test_a_round_without_a_ratio_leaves_it_out() -> None:
    turns = [*paired(3), turn(record(1.0, 0.2), number=3), turn(failure("x"), contender="b", number=3)]
    [row] = compare(turns, ["a", "b"], seed=0)
    assert row.rounds == 4 and row.ratios["latency"] is None


def test_rows_are_named_in_json_as_the_published_pages_select_them() -> None:
    turns = paired(4)
    [row, _] = summarise(turns, ["a", "b"])
    [ratio] = compare(turns, ["a", "b"], seed=0)
    data = json.loads(json.dumps([row.to_json(), ratio.to_json()]))
    assert data[0]["load"] == data[1]["load"] == "2 requests/s"
    assert data[0]["time_to_first_token_ms"]["p95"] == 1000.0 and data[0]["failed"] == 0
    assert data[1]["ratios"]["latency"]["median"] == 0.5 and data[1]["reference"] == "a"


def test_tables_have_a_row_for_each_contender() -> None:
    turns = paired(4)
    rows, ratios = summarise(turns, ["a", "b"]), compare(turns, ["a", "b"], seed=0)
    latencies, throughput, divided = map(markdown, tables(rows, ratios))
    assert "1000 1000 1000" in latencies and "| b |" in latencies
    assert "| 0.50 | 2.5 |" in throughput and "Divided by a" in divided and "0.50 (0.50-0.50)" in divided
