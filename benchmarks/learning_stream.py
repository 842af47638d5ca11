"""Servers whose drafters learn, over a stream of requests with a change of domain:
`python -m benchmarks.learning_stream --json FILE`.

Each contender is a process of `outpace serve` that answers the same requests in the same order, some at a
time. In the middle the kind of prompts changes. The acceptance of draft tokens is counted by windows of
requests, and the time of each request is taken. Texts are compared with those of plain decoding: in float32
rows of another batch may differ in the last bits, and so, rarely, does a text at a tie.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, quantiles
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import openai
import typer

from benchmarks.soak_server import ServerProcess, serving
from outpace.bench.measure.provenance import provenance
from outpace.bench.report.json_file import write_json
from outpace.console import progress
from outpace.tables import Table, print_tables
from zoo_training.prompts import prompts as written

TARGET = "zoo:target"
PLAIN = "plain"
OF_DRAFT, OF_HEAD = "--draft {draft} --depth 5", "--head {head} --depth 5"
# name -> arguments of `outpace serve`
CONTENDERS = {
    PLAIN: "--method autoregressive",
    "draft, fixed": f"--method speculative-sampling {OF_DRAFT}",
    "online-sd": f"--method online-sd {OF_DRAFT} --learn {{folder}}",
    "online-sd, between steps": f"--method online-sd {OF_DRAFT}",
    "head, fixed": f"--method eagle3 --tree chain {OF_HEAD}",
    "aurora": f"--method aurora {OF_HEAD} --learn {{folder}}",
    "aurora, untrained": "--method aurora --depth 3 --learn {folder}",
}
RECOVERED = 0.95  # share of the acceptance at the end that counts as recovered


@dataclass(frozen=True)
class Answer:
    """What a server reports of one request."""

    text: str
    seconds: float
    num_drafts: int
    num_draft_tokens: int
    num_accepted: int


@dataclass(frozen=True)
class Window:
    """Successive requests."""

    contender: str
    begin: int  # number of the first request
    requests: int
    acceptance: float | None  # accepted draft tokens of all; None: nothing was drafted
    tokens_per_step: float | None  # where tokens were drafted


@dataclass(frozen=True)
class Latency:
    """Times of the requests before and after the change, in milliseconds."""

    contender: str
    half: str  # "before" or "after"
    p50: float
    p95: float


def stream(kinds: Sequence[Sequence[str]], number: int) -> list[str]:
    """`number` prompts, of each sequence of kinds in turn as many."""
    each = number // len(kinds)
    rows = itertools.chain.from_iterable(
        written(each, seed, of_kind) for seed, of_kind in enumerate(kinds, start=100)
    )
    return [row["prompt"] if "prompt" in row else row["messages"] for row in rows]


def ask(server: ServerProcess, prompts: Sequence[Any], at_a_time: int, max_tokens: int) -> Iterator[Answer]:
    """The answers to all prompts, in their order."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=600)
    body: dict[str, Any] = {"model": TARGET, "temperature": 0, "max_tokens": max_tokens}
    body["extra_body"] = {"include_metrics": True, "ignore_eos": True}

    def answer(prompt: Any) -> Answer:
        begin = time.perf_counter()
        if isinstance(prompt, str):
            found: Any = client.completions.create(**body, prompt=prompt)
            text = found.choices[0].text
        else:
            found = client.chat.completions.create(**body, messages=prompt)
            text = found.choices[0].message.content
        seconds = time.perf_counter() - begin
        counts = found.metrics["speculative_decoding"]
        return Answer(
            text,
            seconds,
            counts["num_drafts"],
            counts["num_draft_tokens"],
            counts["num_accepted_tokens"],
        )

    with ThreadPoolExecutor(at_a_time) as pool:
        yield from pool.map(answer, prompts)


def windows(contender: str, answers: Sequence[Answer], size: int) -> list[Window]:
    """The acceptance in windows of `size` requests."""
    found: list[Window] = []
    for begin in range(0, len(answers), size):
        part = answers[begin : begin + size]
        drafts, tokens, accepted = (
            sum(values)
            for values in zip(
                *((each.num_drafts, each.num_draft_tokens, each.num_accepted) for each in part), strict=True
            )
        )
        rates = (accepted / tokens, 1 + accepted / drafts) if tokens else (None, None)
        found.append(Window(contender, begin, len(part), *rates))
    return found


def recovered_after(found: Sequence[Window], change: int) -> int | None:
    """Requests after the change from which every window has RECOVERED of the acceptance of the last three;
    None if nothing was drafted."""
    after = [each for each in found if each.begin >= change]
    rates = [each.acceptance for each in after if each.acceptance is not None]
    if len(rates) < len(after) or len(rates) < 3:
        return None
    low = [index for index, rate in enumerate(rates) if rate < RECOVERED * fmean(rates[-3:])]
    return after[low[-1]].begin + after[low[-1]].requests - change if low else 0


def latencies(contender: str, answers: Sequence[Answer], change: int) -> list[Latency]:
    """Median and 95th percentile before and after the change."""
    halves = {"before": answers[:change], "after": answers[change:]}
    found: list[Latency] = []
    for half, part in halves.items():
        times = [1000 * each.seconds for each in part]
        percentiles = quantiles(times, n=20, method="inclusive")
        found.append(Latency(contender, half, percentiles[9], percentiles[18]))
    return found


def learned(server: ServerProcess) -> dict[str, float]:
    """The server's metrics of learning."""
    prefix = "outpace_learning_"
    return {
        name.removeprefix(prefix): value
        for name, value in server.metrics().items()
        if name.startswith(prefix)
    }


def main(
    json: Annotated[Path, typer.Option(help="File to write.")],
    contenders: Annotated[str, typer.Option(help=f"Of {'; '.join(CONTENDERS)}.")] = ";".join(CONTENDERS),
    kinds: Annotated[str, typer.Option(help="Kinds of prompts before and after the change.")] = "code;chat",
    draft: Annotated[str, typer.Option(help="A draft model of the zoo's target.")] = "zoo:draft",
    head: Annotated[str, typer.Option(help="A head of EAGLE-3 for it.")] = "zoo:eagle3",
    number: Annotated[int, typer.Option(min=6, help="Requests.")] = 2000,
    window: Annotated[int, typer.Option(min=1, help="Requests of a window.")] = 100,
    at_a_time: Annotated[int, typer.Option(min=1, help="Requests at the same time.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 48,
    more: Annotated[str, typer.Option(help="Further arguments of servers that learn.")] = "",
    number_of_threads: Annotated[int, typer.Option("--threads", min=1, help="CPU threads.")] = 2,
) -> None:
    """Let servers that learn answer a stream of requests."""
    names = [each.strip() for each in contenders.split(";")]
    if unknown := set(names) - set(CONTENDERS):
        raise typer.BadParameter(f"there is no contender {min(unknown)}: use {'; '.join(CONTENDERS)}")
    parts = [part.split(",") for part in kinds.split(";")]
    prompts = stream(parts, number)
    change = len(prompts) // len(parts)
    answers: dict[str, list[Answer]] = {}
    state: dict[str, dict[str, float]] = {}
    with progress(len(names) * len(prompts)) as advance, TemporaryDirectory() as folder:
        for name in names:
            place = Path(folder, name.replace(" ", "-"))
            given = CONTENDERS[name].format(folder=place, draft=draft, head=head).split()
            is_learning = "--learn" in given
            arguments = [TARGET, *given, "--dtype", "float32", "--threads", str(number_of_threads)]
            with serving([*arguments, *(more.split() if is_learning else ())]) as server:
                for answer in ask(server, prompts, at_a_time, max_tokens):
                    answers.setdefault(name, []).append(answer)
                    advance(name, 1)
                state[name] = learned(server)
                server.stop()
    found = [each for name in names for each in windows(name, answers[name], window)]
    times = [each for name in names for each in latencies(name, answers[name], change)]
    rows: list[dict[str, Any]] = []
    for name in names:
        own = [each for each in found if each.contender == name]
        differing = sum(a.text != b.text for a, b in zip(answers[name], answers[names[0]], strict=True))
        row = {"contender": name, "recovered_after": recovered_after(own, change), "differing": differing}
        rows.append(row | state[name])
    print_tables(
        [
            Table(
                "Requests",
                ("server", "acceptance by windows", "recovered after", "other texts"),
                tuple(
                    (
                        row["contender"],
                        " ".join(
                            "-" if each.acceptance is None else f"{each.acceptance:.2f}"
                            for each in found
                            if each.contender == row["contender"]
                        ),
                        "-" if row["recovered_after"] is None else str(row["recovered_after"]),
                        str(row["differing"]),
                    )
                    for row in rows
                ),
            ),
            Table(
                "Milliseconds per request",
                ("server", "half", "median", "95th percentile"),
                tuple((each.contender, each.half, f"{each.p50:.0f}", f"{each.p95:.0f}") for each in times),
            ),
        ]
    )
    json.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        json,
        {
            "schema": "outpace-learning-stream/1",
            "provenance": provenance(),
            "settings": {
                "kinds": kinds,
                "draft": draft,
                "head": head,
                "requests": len(prompts),
                "at_a_time": at_a_time,
                "max_tokens": max_tokens,
            },
            "results": [asdict(each) for each in found],
            "milliseconds": [asdict(each) for each in times],
            "servers": rows,
        },
    )


if __name__ == "__main__":
    typer.run(main)
