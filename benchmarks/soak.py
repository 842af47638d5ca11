"""Soak test of the server: `python -m benchmarks.soak`.

For each setting a real `outpace serve` process answers the zoo's questions one at a time; then many requests
of all kinds come at once, with clients that leave, read slowly, send nonsense or are killed; then many short
ones. Every request must get its answer, or the error that it deserves; every text at temperature 0 must be
the one that the question had alone; and afterwards the process must hold what it held before.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.soak_questions import questions, short_questions
from benchmarks.soak_server import Held, ServerProcess, serving
from benchmarks.soak_traffic import Outcome, Send, Traffic
from outpace.bench.measure.provenance import provenance
from outpace.bench.report.json_file import write_json
from outpace.console import progress
from outpace.tables import Table, markdown, print_tables

TARGET = "zoo:target"
COMMON = "--dtype float32 --max-waiting 4096 --threads 1"
# what a method learns is bounded too; with this bound within the first short requests
LOOKUPS = "prompt-lookup,suffix-decoding:max_cached_tokens=4096"
SETTINGS: Mapping[str, str] = {  # name -> arguments of `outpace serve`
    "little memory": f"--method autoregressive --kv-memory 8MiB {COMMON}",
    "three methods": f"--draft zoo:draft --methods {LOOKUPS} {COMMON}",
    "compiled": f"--draft zoo:draft --compile {COMMON}",
}
AT_ONCE = 32  # short requests at the same time
STEP = 1000  # short requests between two measurements of memory
WARM_UP = 5  # measurements before those that are compared: caches fill, and the allocator's arenas grow
MAX_MORE_THREADS = 16  # pools start their threads when they are needed first
MAX_KIB_PER_REQUEST = 2.0  # growth of memory at which the test fails
PAGE = """# Reliability of the server

A process of `outpace serve` with the zoo's models in float32 gets many requests of all kinds at the same
time: chat completions, completions and responses, streamed or not, with samples, tools, JSON schemas, log
probabilities and predictions, drafted by any of its methods. Some clients leave, some read their stream byte
by byte, some send what is no valid request, and some are processes that are killed. Then come many short
requests, with new prompts among them.

A request is lost if it gets neither its answer nor the error that it deserves. It is mixed up if its text at
temperature 0 is not the one that the same question had before, when nothing else was decoded; of a client
that leaves, the text so far is compared. Afterwards no request, task or connection may be left, and the
memory may grow by at most 2 KiB per short request after the first 5000, in the median of the intervals
between measurements: a leak grows in each of them, one step of the memory allocator in one.
"""
UNMEASURED = (
    "This run is shorter than the program's defaults, 1000 mixed and 15000 short requests. It has too few "
    "measurements of memory, so the bound on its growth is **not checked**."
)


@dataclass(frozen=True)
class Run:
    """What one setting showed."""

    setting: str
    arguments: str
    num_mixed: int
    num_short: int
    mixed: Outcome  # of the requests that came at once
    short: Outcome
    before: Held
    after: Held  # the mixed requests
    memory: Sequence[tuple[int, float]]  # short requests so far, and MiB
    end: Held
    preemptions: int
    drafter_errors: int
    exit_status: int

    @property
    def kib_per_request(self) -> float | None:
        """Median growth of the memory per short request between two measurements after the warm-up; None
        with too few measurements.

        A leak grows with every request, and so shows between any two measurements. A step of the memory
        allocator, which takes tens of MiB at once and fills them later, shows between two of them.
        """
        found = self.memory[WARM_UP:]
        if len(found) < 3:
            return None
        numbers, mib = np.array(found).T
        return float(np.median(np.diff(mib) / np.diff(numbers))) * 1024

    @property
    def faults(self) -> list[str]:
        """What must not be, one sentence each."""
        found = [f"lost: {each}" for outcome in (self.mixed, self.short) for each in outcome.lost]
        found += [f"mixed up: {each}" for outcome in (self.mixed, self.short) for each in outcome.mixed_up]
        for when, held in (("mixed", self.after), ("short", self.end)):
            if not held.is_idle:
                found.append(f"requests are left after the {when} ones: {held}")
            for name in ("file_descriptors", "tasks"):
                if getattr(held, name) > getattr(self.before, name):
                    found.append(f"more {name} after the {when} requests: {held}, before: {self.before}")
        if self.end.threads > self.before.threads + MAX_MORE_THREADS:
            found.append(f"more threads after the short requests: {self.end}, before: {self.before}")
        if (self.kib_per_request or 0.0) > MAX_KIB_PER_REQUEST:
            found.append(f"the memory grows by {self.kib_per_request:.2f} KiB per request")
        if self.exit_status:
            found.append(f"the server ended with status {self.exit_status}")
        return found

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"kib_per_request": self.kib_per_request, "faults": self.faults}


def soak(setting: str, arguments: str, num_mixed: int, num_short: int, seed: int) -> Run:
    """Test one setting of the server. RuntimeError if it does not start."""
    words = [TARGET, *shlex.split(arguments)]
    with serving(words) as server, progress(num_mixed + num_short) as report:
        return asyncio.run(
            _soak(server, setting, arguments, num_mixed, num_short, seed, lambda: report(setting, 1))
        )


async def _soak(
    server: ServerProcess,
    setting: str,
    arguments: str,
    num_mixed: int,
    num_short: int,
    seed: int,
    advance: Callable[[], None],
) -> Run:
    traffic = Traffic(server.url, TARGET, _methods(server.url), seed)
    await traffic.learn(short_questions(TARGET))
    await _send(traffic.short(AT_ONCE * 4), AT_ONCE, lambda: None)  # threads and caches are there now
    await traffic.learn(questions(TARGET))
    traffic.outcome = mixed = Outcome()
    await traffic.disconnect()
    before = await asyncio.to_thread(server.idle)
    await _send(traffic.mixed(num_mixed), num_mixed, advance)
    await traffic.disconnect()
    after = await asyncio.to_thread(server.idle, before)
    await traffic.learn(short_questions(TARGET))
    traffic.outcome = short = Outcome()
    memory: list[tuple[int, float]] = [(0, after.rss_mib)]
    end = after
    while memory[-1][0] < num_short:
        number = min(STEP, num_short - memory[-1][0])
        await _send(traffic.short(number), AT_ONCE, advance)
        await traffic.disconnect()
        end = await asyncio.to_thread(server.idle, before)
        memory.append((memory[-1][0] + number, end.rss_mib))
    metrics = server.metrics()
    return Run(
        setting,
        arguments,
        num_mixed,
        num_short,
        mixed,
        short,
        before,
        after,
        memory,
        end,
        int(metrics["outpace_preemptions_total"]),
        int(metrics["outpace_drafter_errors_total"]),
        server.stop(),
    )


async def _send(sends: Sequence[Send], at_once: int, advance: Callable[[], None]) -> None:
    """Send requests, at most so many at the same time, until each has ended."""
    free = asyncio.Semaphore(at_once)

    async def send(one: Send) -> None:
        async with free:
            await one()
        advance()

    await asyncio.gather(*map(send, sends))


def _methods(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as response:
        return json.loads(response.read())["data"][0]["methods"]


def tables(runs: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The runs as tables with a column per setting."""
    columns = ("", *(run["setting"] for run in runs))

    def rows(phase: str) -> tuple[tuple[str, ...], ...]:
        kinds = sorted({kind for run in runs for kind in run[phase]["numbers"]})
        found = [(kind, *(str(run[phase]["numbers"].get(kind, 0)) for run in runs)) for kind in kinds]
        for name, key in (("lost", "lost"), ("mixed up", "mixed_up")):
            found.append((name, *(str(len(run[phase][key])) for run in runs)))
        return tuple(found)

    held = [
        (f"{label}, {when}", *(f"{run[key][name]:.0f}" for run in runs))
        for name, label in (
            ("rss_mib", "resident memory, MiB"),
            ("kv_bytes", "KV cache, bytes"),
            ("running", "samples decoded"),
            ("waiting", "samples waiting"),
            ("tasks", "tasks of the event loop"),
            ("file_descriptors", "file descriptors"),
            ("threads", "threads"),
        )
        for key, when in (("before", "before"), ("after", "after the mixed requests"), ("end", "at the end"))
    ]
    held += [
        ("preemptions", *(str(run["preemptions"]) for run in runs)),
        ("errors of drafters", *(str(run["drafter_errors"]) for run in runs)),
        ("exit status after SIGTERM", *(str(run["exit_status"]) for run in runs)),
    ]
    memory = [
        (str(number), *(f"{mib:.1f}" for mib in values))
        for number, *values in zip(
            [number for number, _ in runs[0]["memory"]],
            *([mib for _, mib in run["memory"]] for run in runs),
            strict=True,
        )
    ]
    growth = (_kib(run["kib_per_request"]) for run in runs)
    memory.append((f"median growth after {WARM_UP * STEP}, KiB per request", *growth))
    return [
        Table(f"{runs[0]['num_mixed']} mixed requests at the same time", columns, rows("mixed")),
        Table("What the server holds", columns, tuple(held)),
        Table(f"{runs[0]['num_short']} short requests, {AT_ONCE} at a time", columns, rows("short")),
        Table("Resident memory in MiB by the number of short requests", columns, tuple(memory)),
    ]


def _kib(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f}"


def page(data: Mapping[str, Any], name: str) -> str:
    """The page of results in Markdown, for the result file of this name in a folder beside it."""
    runs, source = data["results"], data["provenance"]
    lines = [PAGE, "Settings of `outpace serve zoo:target`:", ""]
    lines += [f"- {run['setting']}: `{run['arguments']}`" for run in runs]
    for table in tables(runs):
        lines += ["", f"## {table.title}", "", markdown(Table("", table.columns, table.rows))]
    faults = [f"- {run['setting']}: {fault}" for run in runs for fault in run["faults"]]
    lines += ["", "## Faults", "", *(faults or ["None."])]
    if any(run["kib_per_request"] is None for run in runs):
        lines += ["", UNMEASURED]
    command = " ".join(map(str, source["argv"]))
    measured = f"`{command}`; {source['device']}, PyTorch {source['versions']['torch']}, commit "
    measured += f"{source['commit']}, {source['date'][:10]}"
    lines += ["", f"Measured with [{name}](serving-reliability/{name}): {measured}.", ""]
    return "\n".join(lines)


def main(
    setting: Annotated[
        list[str] | None, typer.Option(help="A setting to test; may be repeated; default: all.")
    ] = None,
    num_mixed: Annotated[int, typer.Option(min=20, help="Mixed requests at the same time.")] = 1000,
    num_short: Annotated[int, typer.Option(min=1, help="Short requests after them.")] = 15_000,
    seed: Annotated[int, typer.Option(help="Seed of the choice of requests.")] = 0,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
    markdown_: Annotated[
        Path | None, typer.Option("--markdown", help="Write the page of results to this file.")
    ] = None,
) -> None:
    """Test `outpace serve` under load from clients of all kinds. Exit status 1 if there is a fault."""
    chosen = setting or list(SETTINGS)
    if unknown := set(chosen) - set(SETTINGS):
        raise typer.BadParameter(f"there is no setting {min(unknown)}: use {', '.join(SETTINGS)}")
    runs: list[dict[str, Any]] = []
    data: dict[str, Any] = {"schema": "outpace-soak/1", "provenance": provenance(), "results": runs}
    for name in chosen:
        runs.append(soak(name, SETTINGS[name], num_mixed, num_short, seed).to_json())
        if json_:
            write_json(json_, data | {"complete": len(runs) == len(chosen)})
    print_tables(tables(runs))
    if markdown_:
        markdown_.write_text(page(data, json_.name if json_ else ""), encoding="utf-8")
    faults = [fault for run in runs for fault in run["faults"]]
    for fault in faults:
        typer.echo(f"soak: {fault}", err=True)
    if faults:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
