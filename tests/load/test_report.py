"""Tables, sentences and the chart of a load test, from constructed rows."""

from __future__ import annotations

import pytest

from outpace.bench.load.chart import chart
from outpace.bench.load.load_level import Concurrency, LoadLevel, RequestRate
from outpace.bench.load.objectives import Objectives
from outpace.bench.load.ratios import compare
from outpace.bench.load.record import RequestRecord
from outpace.bench.load.speculation import SpeculationCounters
from outpace.bench.load.summary import summarise
from outpace.bench.load.tables import messages, tables
from outpace.bench.load.turn import Turn
from outpace.bench.report.plot import svg

RATE = RequestRate(2.0)


def record(first: float, **more) -> RequestRecord:
    fields = {"prompt": "p/0", "arrival": 0.0, "sent": 0.0, "latency": first + 1.0, "output_tokens": 5}
    return RequestRecord(**{**fields, "chunks": (first, first + 0.25, first + 0.5), **more})


def turns(level: LoadLevel = RATE, rounds: int = 3) -> list[Turn]:
    counted = SpeculationCounters(10, 30, 15, {0: 9, 1: 5, 2: 1})
    return [
        turn
        for number in range(rounds)
        for turn in (
            Turn("plain", level, number, (record(0.125), record(0.125)), 4.0),
            Turn("drafts", level, number, (record(0.25), record(0.25)), 4.0, speculation=counted),
        )
    ]


NAMES = ["plain", "drafts"]
LIMITS = Objectives(200.0, 125.0)


def test_tables():
    rows = summarise(turns(), NAMES, LIMITS)
    latency, throughput, requests, ratios, rates, speculation = tables(
        rows, compare(turns(), NAMES, LIMITS, seed=0)
    )
    assert latency.rows[0] == (
        "2 requests/s",
        "plain",
        "125 125 125",
        "250 250 250",
        "125 125 125",
        "1125 1125 1125",
    )
    assert throughput.rows == (
        ("2 requests/s", "plain", "0.50", "0.50", "2.5"),
        ("2 requests/s", "drafts", "0.50", "0.00", "2.5"),
    )
    assert requests.rows[1] == ("2 requests/s", "drafts", "6", "0", "5.0", "1.67", "0.0")
    assert ratios.rows[0][:3] == ("2 requests/s", "drafts", "2.00 (2.00-2.00)")
    assert rates.rows[0][3:] == ("1.00 (1.00-1.00)", "0.00 (0.00-0.00)")
    assert speculation.rows == (("2 requests/s", "drafts", "90", "50 %", "2.50", "90 50 10"),)


def test_tables_of_one_contender_without_objectives():
    rows = summarise(turns()[::2], ["plain"], Objectives())
    latency, throughput, _ = tables(rows, [])
    assert len(latency.rows) == 1 and throughput.rows[0][3] == "-"


def test_few_rounds_have_no_interval():
    *_, ratios, _, _ = tables(
        summarise(turns(rounds=2), NAMES, LIMITS), compare(turns(rounds=2), NAMES, LIMITS, seed=0)
    )
    assert ratios.rows[0][2] == "too few rounds"


def test_sentences_about_failures_and_doubts():
    failed = [
        RequestRecord("p/0", 0.0, 0.0, 1.0, error=reason) for reason in ("HTTP 503", "HTTP 503", "HTTP 400")
    ]
    late = record(0.125, arrival=0.0, sent=0.5)
    rows = summarise([Turn("plain", RequestRate(2.0), 0, (*failed, late), 4.0)], ["plain"], Objectives())
    first, second, third = messages(rows, reports_usage=False)
    assert first == "plain, 2 requests/s: 3 of 4 requests failed: HTTP 503 (2), HTTP 400 (1)"
    assert second.startswith("requests were sent late, at 2 requests/s by 485 ms")
    assert "include_usage" in third
    assert not messages(summarise(turns(), NAMES, LIMITS), reports_usage=True)


@pytest.mark.slow
def test_the_chart_has_a_panel_for_goodput_only_with_objectives():
    pytest.importorskip("matplotlib")
    both = [*turns(), *turns(Concurrency(4))]
    drawn = svg(chart(summarise(both, NAMES, LIMITS)))
    for text in ("Time to first token, ms", "Goodput", "concurrent streams", "plain", "drafts", "p95"):
        assert text in drawn
    assert "Goodput" not in svg(chart(summarise(both, NAMES, Objectives())))


def test_a_chart_of_failures_is_empty():
    pytest.importorskip("matplotlib")
    failed = RequestRecord("p/0", 0.0, 0.0, 1.0, error="HTTP 503")
    rows = summarise([Turn("plain", RequestRate(2.0), 0, (failed,), 1.0)], ["plain"], LIMITS)
    assert "End-to-end latency" in svg(chart(rows))
