"""The tables of a load test: latencies, throughput, ratios to the first contender, speculative decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from outpace.bench.load.ratios import RatioRow
from outpace.bench.load.summary import LoadRow, Percentiles
from outpace.bench.measure.bootstrap import MIN_GROUPS
from outpace.bench.report.tables import number, percent, with_interval
from outpace.tables import Table

Row = TypeVar("Row", LoadRow, RatioRow)
LATE = 20.0  # milliseconds; requests sent later than planned by more than this get a warning
SHOWN_FAILURES = 3  # reasons of failures shown for a contender and level
LATENCY_NOTE = (
    "Each cell: 50th, 95th and 99th percentile in milliseconds, of all requests that succeeded. "
    "Inter-token latency is the time between two chunks of a stream. With speculative decoding a chunk holds "
    "several tokens, so compare the time per output token: the time from the first chunk to the last, "
    "divided by the number of tokens after the first, as the server reports it."
)
THROUGHPUT_NOTE = (
    "Rates are per second from the beginning of a turn to its last answer. Goodput: requests per second that "
    "meet --slo-ttft and --slo-itl, the second by their time per output token."
)
REQUEST_NOTE = "Sent late: 99th percentile of the milliseconds between planned arrival and sending."
RATIO_NOTE = (
    "Medians over the rounds, each of which has the same prompts and arrival times for all servers, with "
    f"95 % bootstrap intervals over the rounds, which need at least {MIN_GROUPS}."
)
SPECULATION_NOTE = (
    "From the server's metrics, before and after each turn. Acceptance rate is accepted / drafted tokens. "
    "Mean acceptance length counts the bonus token. By position: among steps that drafted."
)


def tables(rows: Sequence[LoadRow], ratios: Sequence[RatioRow]) -> list[Table]:
    """All tables that have rows."""
    found = [_latencies(rows), _throughput(rows), _requests(rows)]
    for reference in dict.fromkeys(row.reference for row in ratios):
        found += _ratios([row for row in ratios if row.reference == reference])
    if counted := [row for row in rows if row.speculation]:
        found.append(_speculation(counted))
    return found


def messages(rows: Sequence[LoadRow], *, reports_usage: bool) -> list[str]:
    """Sentences about failures, and about what makes the results less reliable."""
    found: list[str] = []
    for row in rows:
        reasons = sorted(row.failures.items(), key=lambda item: -item[1])[:SHOWN_FAILURES]
        if reasons:
            listed = ", ".join(f"{reason} ({count})" for reason, count in reasons)
            where = f"{row.contender}, {row.level.label}"
            found.append(f"{where}: {row.failed} of {row.requests} requests failed: {listed}")
    if late := [row for row in rows if row.delay and row.delay.p99 > LATE]:
        latest = max(late, key=lambda row: row.delay.p99 if row.delay else 0.0)
        found.append(
            f"requests were sent late, at {latest.level.label} by {number(_p99(latest.delay), 0)} ms (99th "
            "percentile): run the load generator on another machine than the server, or at lower rates"
        )
    if not reports_usage:
        found.append(
            "a server did not report its number of tokens (stream_options.include_usage): times per output "
            "token and tokens per second are missing"
        )
    return found


def _table(
    title: str, columns: Sequence[tuple[str, Callable[[Row], str]]], rows: Sequence[Row], note: str
) -> Table:
    cells = tuple((row.level.label, row.contender, *(cell(row) for _, cell in columns)) for row in rows)
    return Table(title, ("load", "server", *(name for name, _ in columns)), cells, note)


def _latencies(rows: Sequence[LoadRow]) -> Table:
    columns: list[tuple[str, Callable[[LoadRow], str]]] = [
        ("time to first token", lambda row: _percentiles(row.time_to_first_token)),
        ("inter-token latency", lambda row: _percentiles(row.inter_token_latency)),
        ("time per output token", lambda row: _percentiles(row.time_per_output_token)),
        ("end-to-end latency", lambda row: _percentiles(row.latency)),
    ]
    return _table("Latency in milliseconds: p50 p95 p99", columns, rows, LATENCY_NOTE)


def _throughput(rows: Sequence[LoadRow]) -> Table:
    columns: list[tuple[str, Callable[[LoadRow], str]]] = [
        ("requests/s", lambda row: number(row.requests_per_second)),
        ("goodput, requests/s", lambda row: number(row.goodput)),
        ("output tokens/s", lambda row: number(row.output_tokens_per_second, 1)),
    ]
    return _table("Throughput", columns, rows, THROUGHPUT_NOTE)


def _requests(rows: Sequence[LoadRow]) -> Table:
    columns: list[tuple[str, Callable[[LoadRow], str]]] = [
        ("requests", lambda row: str(row.requests)),
        ("failed", lambda row: str(row.failed)),
        ("tokens a request", lambda row: number(row.tokens_per_request, 1)),
        ("tokens a chunk", lambda row: number(row.tokens_per_chunk)),
        ("sent late, ms", lambda row: number(_p99(row.delay), 1)),
    ]
    return _table("Requests", columns, rows, REQUEST_NOTE)


def _ratios(rows: Sequence[RatioRow]) -> list[Table]:
    def cell(name: str) -> Callable[[RatioRow], str]:
        return lambda row: with_interval(row.ratios[name], "too few rounds")

    # two tables, since one would be wider than a terminal
    of_tokens = [
        ("time to first token", cell("time_to_first_token")),
        ("inter-token latency", cell("inter_token_latency")),
        ("time per output token", cell("time_per_output_token")),
    ]
    of_requests = [
        ("end-to-end latency", cell("latency")),
        ("output tokens/s", cell("output_tokens_per_second")),
        ("goodput", cell("goodput")),
    ]
    title = f"divided by that of {rows[0].reference} (95 %)"
    return [
        _table(f"Median latency of tokens, {title}", of_tokens, rows, ""),
        _table(f"Median latency and throughput of requests, {title}", of_requests, rows, RATIO_NOTE),
    ]


def _speculation(rows: Sequence[LoadRow]) -> Table:
    columns: list[tuple[str, Callable[[LoadRow], str]]] = [
        ("drafted tokens", lambda row: str(row.speculation.draft_tokens) if row.speculation else "-"),
        (
            "acceptance rate",
            lambda row: percent(row.speculation.acceptance_rate if row.speculation else None),
        ),
        (
            "mean acceptance length",
            lambda row: number(row.speculation.mean_acceptance_length if row.speculation else None),
        ),
        ("by position, %", _positions),
    ]
    return _table("Speculative decoding", columns, rows, SPECULATION_NOTE)


def _positions(row: LoadRow) -> str:
    rates = row.speculation.acceptance_by_position if row.speculation else []
    return " ".join(f"{100 * rate:.0f}" for rate in rates) or "-"


def _percentiles(found: Percentiles | None) -> str:
    return " ".join(map(_milliseconds, (found.p50, found.p95, found.p99))) if found else "-"


def _milliseconds(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _p99(found: Percentiles | None) -> float | None:
    return found.p99 if found else None
