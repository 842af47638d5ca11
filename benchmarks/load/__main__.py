"""Running servers under load, compared round by round: `python -m benchmarks.load NAME=URL NAME=URL ...`.

Every server gets the same prompts with the same seeds in each round, and another one begins in the next
round. The ratios to the first server are medians over paired rounds with 95 % intervals, which tools that
load one server do not have. `benchmarks.serving` starts its servers itself.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.load.load_test import LoadTest
from benchmarks.load.plan import Contender, LoadPlan, parse_levels
from benchmarks.load.report import failures, tables, to_json
from benchmarks.load.summary import compare, summarise
from outpace.bench.measure.workload import load_items
from outpace.bench.report.json_file import write_json
from outpace.console import progress
from outpace.recipes import split_outside
from outpace.tables import print_tables


def main(
    servers: Annotated[
        list[str],
        typer.Argument(help="NAME=URL, such as plain=http://localhost:8000/v1.", show_default=False),
    ],
    json: Annotated[Path | None, typer.Option(help="File to write.")] = None,
    concurrency: Annotated[str, typer.Option(help="Concurrent streams, as in 1,4,16.")] = "1,4,16",
    prompts: Annotated[str, typer.Option(help="Prompt sets or files.")] = "code,edit",
    temperature: Annotated[float, typer.Option(help="Temperature of all requests.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of every answer.")] = 128,
    seconds: Annotated[float, typer.Option(help="Length of a turn.")] = 5.0,
    rounds: Annotated[int, typer.Option(min=1, help="Times that everything is measured.")] = 20,
) -> None:
    """Measure running servers and print the ratios to the first one."""
    urls = dict(each.split("=", 1) for each in servers if "=" in each)
    if len(urls) < len(servers):
        raise typer.BadParameter("give each server as NAME=URL, with a name of its own")
    contenders = [Contender(name, url.rstrip("/")) for name, url in urls.items()]
    items = [item for source in split_outside(prompts, ",") for item in load_items(source)]
    plan = LoadPlan(items, parse_levels(None, concurrency), rounds, seconds)
    test = LoadTest(
        contenders, plan, {"max_tokens": max_tokens, "temperature": temperature, "ignore_eos": True}
    )
    with progress(test.num_turns, refresh_rate=1.0) as advance:
        asyncio.run(test.run(advance))
    rows, ratios = summarise(test.turns, [*urls]), compare(test.turns, [*urls], seed=plan.seed)
    print_tables(tables(rows, ratios))
    for sentence in failures(rows):
        typer.echo(sentence, err=True)
    if json:
        write_json(json, to_json(test, rows, ratios))


if __name__ == "__main__":
    typer.run(main)
