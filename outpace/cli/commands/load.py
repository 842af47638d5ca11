"""`outpace load`: latency, throughput and goodput of OpenAI-compatible servers under load."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outpace.bench.load.endpoint import Endpoint
from outpace.cli.failures import FAILED, INTERRUPTED, Debug, exit_with, report_failures
from outpace.cli.options import Json
from outpace.cli.output import print_json, print_status

if TYPE_CHECKING:
    from outpace.bench.load.load_test import LoadTest
    from outpace.bench.load.report import LoadReport

Option = typer.Option
RATES = "1,2,4"  # default of --rates, where --concurrency is not given
NUM_REQUESTS = 20  # default of --num-requests, where --seconds is not given


@report_failures
def load(
    address: Annotated[
        str | None, typer.Argument(metavar="URL", help="A server, such as http://localhost:8000/v1.")
    ] = None,
    url: Annotated[
        list[str] | None, Option(metavar="NAME=URL", help="A server to compare; may be repeated.")
    ] = None,
    extra_body: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=JSON",
            help="Settings to compare: fields that are added to requests; may be repeated.",
        ),
    ] = None,
    model: Annotated[str | None, Option(metavar="NAME", help="Default: the first of /v1/models.")] = None,
    api_key: Annotated[
        str | None, Option(metavar="KEY", envvar="OUTPACE_API_KEY", help="Key of the servers.")
    ] = None,
    endpoint: Annotated[
        Endpoint, Option(help="What requests are sent to, below /v1.", show_default=False)
    ] = Endpoint.chat,
    prompts: Annotated[
        str, Option(metavar="SETS", show_default=False, help="code (default), arithmetic, edit, or files.")
    ] = "code",
    rates: Annotated[str | None, Option(metavar="LIST", help="Requests per second; default: 1,2,4.")] = None,
    concurrency: Annotated[
        str | None, Option(metavar="LIST", help="Numbers of concurrent streams, as in 1,4,16.")
    ] = None,
    num_requests: Annotated[
        int | None, Option(metavar="N", help="Requests of each load in a round; default: 20.")
    ] = None,
    seconds: Annotated[
        int | None, Option(metavar="N", help="Instead: how long each load lasts in a round.")
    ] = None,
    rounds: Annotated[int, Option(metavar="N", help="Times that every load is measured.")] = 5,
    max_tokens: Annotated[int, Option(metavar="N", help="Maximum number of tokens of an answer.")] = 128,
    temperature: Annotated[float, Option(metavar="X", help="Temperature of all requests.")] = 0.0,
    ignore_eos: Annotated[bool, Option("--ignore-eos", help="Continue after the end-of-text token.")] = False,
    seed: Annotated[int, Option(metavar="N", help="Seed of arrivals, prompts and samples.")] = 0,
    slo_ttft: Annotated[
        float | None, Option(metavar="MS", help="Goodput: time to first token at most this.")
    ] = None,
    slo_itl: Annotated[
        float | None, Option(metavar="MS", help="Goodput: time per output token at most this.")
    ] = None,
    timeout: Annotated[float, Option(metavar="SECONDS", help="A request that takes longer fails.")] = 120.0,
    output: Annotated[
        list[Path] | None,
        Option("--output", "-o", metavar="PATH", help="Folder, .json, .md, .html, .svg or .png."),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure latency, throughput and goodput of OpenAI-compatible servers."""
    from outpace.bench.load.load_level import parse_levels
    from outpace.bench.load.load_test import LoadTest
    from outpace.bench.load.objectives import Objectives
    from outpace.bench.load.plan import LoadPlan, TurnLength
    from outpace.bench.load.report import NAMES, SUFFIXES, LoadReport
    from outpace.bench.load.request_body import RequestOptions, check_prompts
    from outpace.bench.load.server import line_up, parse_extra_bodies, parse_server
    from outpace.bench.measure.provenance import provenance
    from outpace.bench.measure.workload import load_items
    from outpace.bench.report.files import check_writable, expanded
    from outpace.recipes import split_outside

    positive = {
        "--num-requests": num_requests,
        "--seconds": seconds,
        "--rounds": rounds,
        "--max-tokens": max_tokens,
        "--timeout": timeout,
    }
    if wrong := [name for name, value in positive.items() if value is not None and value <= 0]:
        raise ValueError(f"{wrong[0]} is {positive[wrong[0]]}: give a positive number")
    if seed < 0 or temperature < 0:
        raise ValueError("--seed and --temperature are 0 or positive numbers")
    if num_requests and seconds:
        raise ValueError("give one of --num-requests and --seconds")
    servers = [parse_server(text) for text in [*([address] if address else []), *(url or [])]]
    contenders = line_up(servers, parse_extra_bodies(extra_body or []))
    levels = parse_levels(rates if rates or concurrency else RATES, concurrency)
    files = expanded(output or [], NAMES, SUFFIXES)
    check_writable(files, drawn=(".html", ".svg", ".png"))
    items = [item for source in split_outside(prompts, ",") for item in load_items(source)]
    check_prompts(items, endpoint)
    length = TurnLength(None, seconds) if seconds else TurnLength(num_requests or NUM_REQUESTS)
    test = LoadTest(
        contenders,
        LoadPlan(items, levels, rounds, length, seed),
        RequestOptions(endpoint, max_tokens, temperature, ignore_eos),
        model=model,
        api_key=api_key,
        timeout=timeout,
    )
    print_status(f"{len(items)} prompts, {test.num_turns} turns")
    interrupted = _run(test)
    report = LoadReport(test, Objectives(slo_ttft, slo_itl), provenance("cpu", _without_key(sys.argv)))
    _print(report, files, json=json)
    if interrupted:
        exit_with(f"interrupted after {test.num_requests} requests", INTERRUPTED)
    if all(row.failed == row.requests for row in report.rows):
        exit_with("no request succeeded", FAILED)


def _run(test: LoadTest) -> bool:
    """Run the test and return whether Ctrl-C ended it; without any answer until then KeyboardInterrupt."""
    from outpace.console import progress

    try:
        # drawing the bar takes time from the thread that times the chunks
        with progress(test.num_units, refresh_rate=1.0) as advance:
            asyncio.run(test.run(advance))
    except KeyboardInterrupt:
        if not test.num_requests:
            raise
        return True
    return False


def _print(report: LoadReport, files: list[Path], *, json: bool) -> None:
    """Print the results, then write the files; exit with an error if one cannot be written."""
    from outpace.bench.load.tables import tables
    from outpace.bench.report.files import write_all
    from outpace.bench.report.json_file import finite
    from outpace.tables import print_tables

    if json:
        print_json(finite(report.to_json()))
    else:
        print_tables(tables(report.rows, report.ratios))
    failures = write_all(files, report.write, report.to_json)
    for sentence in [*report.messages, *failures]:
        print_status(sentence)
    if failures:
        raise typer.Exit(FAILED)


def _without_key(arguments: Sequence[str]) -> list[str]:
    """The command line without the key, since it is saved with the results."""
    return [
        "***" if before == "--api-key" else "--api-key=***" if each.startswith("--api-key=") else each
        for before, each in zip(["", *arguments], arguments, strict=False)
    ]
