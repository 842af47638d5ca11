"""What a load test measured, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.load.load_test import LoadTest
from benchmarks.load.summary import MEASURES, LoadRow, Percentiles, RatioRow
from outpace.bench.measure.bootstrap import MIN_GROUPS
from outpace.bench.measure.provenance import provenance
from outpace.bench.report.tables import number, percent, with_interval
from outpace.tables import Table

SCHEMA = "outpace-load/2"
LATENCY_NOTE = (
    "50th, 95th and 99th percentile, of all requests that succeeded. Time per output token: from the first "
    "chunk to the last, divided by the number of tokens after the first, as the server reports it. "
    "Sent late: 99th percentile between planned arrival and sending, which the load generator lost."
)
THROUGHPUT_NOTE = (
    "Rates are per second from the beginning of a turn to its last answer. Drafts: from the server's "
    "metrics, before and after each turn. Tokens per draft count the bonus token."
)
RATIO_NOTE = (
    "Medians over the rounds, each of which has the same prompts and arrival times for all servers, with "
    f"95 % bootstrap intervals over the rounds, which need at least {MIN_GROUPS}."
)


def to_json(test: LoadTest, rows: Sequence[LoadRow], ratios: Sequence[RatioRow]) -> dict[str, Any]:
    """Settings, provenance and results, without the times of single chunks, which would be megabytes."""
    contenders = [
        {"name": each.name, "model": test.models.get(each.url), "extra_body": dict(each.extra_body)}
        for each in test.contenders
    ]
    return {
        "schema": SCHEMA,
        "provenance": provenance("cpu"),
        "settings": {
            "contenders": contenders,
            **test.fields,
            "num_prompts": len(test.plan.items),
            "loads": [level.label for level in test.plan.levels],
            "rounds": test.plan.rounds,
            "seconds": test.plan.seconds,
            "seed": test.plan.seed,
        },
        "complete": len(test.turns) == test.num_turns,
        "results": [row.to_json() for row in rows],
        "ratios": [row.to_json() for row in ratios],
    }


def tables(rows: Sequence[LoadRow], ratios: Sequence[RatioRow]) -> list[Table]:
    """All tables."""
    found = [_latencies(rows), _throughput(rows)]
    for reference in dict.fromkeys(row.reference for row in ratios):
        of = [row for row in ratios if row.reference == reference]
        cells = tuple(
            (
                row.level.label,
                row.contender,
                *(with_interval(row.ratios[name], "too few rounds") for name in MEASURES),
            )
            for row in of
        )
        names = (name.replace("_", " ").replace(" per second", "/s") for name in MEASURES)
        found.append(Table(f"Divided by {reference} (95 %)", ("load", "server", *names), cells, RATIO_NOTE))
    return found


def failures(rows: Sequence[LoadRow]) -> list[str]:
    """A sentence on each row with requests that failed, with the most frequent reason."""
    return [
        f"{row.contender}, {row.level.label}: {row.failed} of {row.requests} requests failed: "
        f"{max(row.failures, key=lambda reason: row.failures[reason])}"
        for row in rows
        if row.failed
    ]


def _latencies(rows: Sequence[LoadRow]) -> Table:
    cells = tuple(
        (
            row.level.label,
            row.contender,
            _percentiles(row.time_to_first_token_ms),
            _percentiles(row.time_per_output_token_ms),
            _percentiles(row.latency_ms),
            number(row.delay_ms.p99 if row.delay_ms else None, 1),
        )
        for row in rows
    )
    heads = ("load", "server", "time to first token", "time per output token", "latency", "sent late")
    return Table("Milliseconds: p50 p95 p99", heads, cells, LATENCY_NOTE)


def _throughput(rows: Sequence[LoadRow]) -> Table:
    cells = tuple(
        (
            row.level.label,
            row.contender,
            str(row.requests),
            number(row.requests_per_second),
            number(row.output_tokens_per_second, 1),
            percent(row.speculation.acceptance_rate if row.speculation else None),
            number(row.speculation.mean_acceptance_length if row.speculation else None),
        )
        for row in rows
    )
    heads = ("load", "server", "requests", "requests/s", "output tokens/s", "accepted", "tokens per draft")
    return Table("Throughput and drafts", heads, cells, THROUGHPUT_NOTE)


def _percentiles(found: Percentiles | None) -> str:
    return " ".join(map(_milliseconds, (found.p50, found.p95, found.p99))) if found else "-"


def _milliseconds(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
