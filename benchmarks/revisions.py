"""Time a decoding step against another revision of outpace: `python -m benchmarks.revisions REVISION`.

Each revision runs in a process of its own, which imports outpace from a Git worktree of that revision. The
processes take turns: one decodes a prompt while the other waits. A pair is the same prompt, decoded by both
one after the other; its ratio is that of the seconds per step. Pairs with different tokens are left out,
because their steps are not comparable.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from outpace.bench.measure.bootstrap import Interval, median_interval
from outpace.bench.measure.provenance import provenance
from outpace.bench.measure.workload import load_items
from outpace.bench.report.json_file import write_json
from outpace.console import progress
from outpace.tables import Table, print_tables

ROOT = Path(__file__).parents[1]
METHODS, BATCHES = ("autoregressive", "speculative-sampling", "eagle3"), (1, 8)
MAX_MEDIAN, MAX_HIGH = 1.03, 1.06  # goals: median of the ratios, upper end of its interval
GOAL = f"goal {MAX_MEDIAN} (at most {MAX_HIGH})"

# Uses only what the Python interface of both revisions has. Answers every request, a JSON line, with another.
WORKER = """
import json, sys
import outpace

opened = {}

def model(name, compiled, threads):
    if (name, compiled) not in opened:
        opened[name, compiled] = outpace.load(name, compile=compiled, threads=threads)
    return opened[name, compiled]

for line in sys.stdin:
    given = json.loads(line)
    options = {}
    if given["method"] == "speculative-sampling":
        options["draft"] = model("zoo:draft", given["compile"], given["threads"])
    elif given["method"] != "autoregressive":
        options["head"] = "zoo:" + given["method"]
    target = model("zoo:target", given["compile"], given["threads"])
    prompts = [given["prompt"] + " " * row for row in range(given["rows"])]
    results = outpace.generate(
        target, prompts, method=given["method"], max_tokens=given["max_tokens"], temperature=0.0,
        ignore_eos=True, **options,
    )
    figures = results[0].statistics
    tokens = [list(result.tokens) for result in results]
    answer = {"tokens": tokens, "milliseconds": 1e3 * figures.seconds / figures.num_steps}
    print("answer", json.dumps(answer), flush=True)
"""


@dataclass(frozen=True)
class Case:
    """A decoding configuration that both revisions run."""

    method: str
    compile: bool
    rows: int = 1  # of the batch: the prompt, with spaces after it

    def __str__(self) -> str:
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        return f"{self.method}, {'compiled' if self.compile else 'eager'}, {rows}"


@dataclass(frozen=True)
class Ratio:
    """Seconds per step of this revision divided by those of the other one, and both in milliseconds."""

    case: str
    pairs: int
    milliseconds: float
    other_milliseconds: float
    ratio: Interval

    @property
    def reached(self) -> bool:
        """Whether the median and the upper end of the interval are within the goals."""
        return self.ratio.median <= MAX_MEDIAN and self.ratio.high <= MAX_HIGH


class Decoder(Protocol):
    """What `compare` needs of a worker."""

    def decode(self, case: Case, prompt: str, max_tokens: int, threads: int) -> dict[str, Any]: ...


class Worker:
    """A process that decodes with one revision."""

    def __init__(self, checkout: Path) -> None:
        command = [sys.executable, "-c", WORKER]
        self._process = subprocess.Popen(
            command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def decode(self, case: Case, prompt: str, max_tokens: int, threads: int) -> dict[str, Any]:
        """The tokens of one prompt and the milliseconds per step; RuntimeError if the process has ended."""
        request = {**asdict(case), "prompt": prompt, "max_tokens": max_tokens, "threads": threads}
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            kind, _, answer = line.partition(" ")
            if kind == "answer":
                return json.loads(answer)
        raise RuntimeError(f"the process ended with status {self._process.wait()}: its error is above")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """A checkout of this revision in a temporary folder; ValueError for an unknown revision."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkout"
        git = ["git", "-C", str(ROOT), "worktree"]
        added = subprocess.run(
            [*git, "add", "--detach", str(path), revision], capture_output=True, text=True, check=False
        )
        if added.returncode:
            raise ValueError(f"{revision} cannot be checked out: {added.stderr.strip()}")
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


def compare(
    case: Case,
    ours: Decoder,
    theirs: Decoder,
    *,
    prompts: Sequence[str],
    rounds: int,
    max_tokens: int,
    threads: int,
) -> Ratio:
    """Decode every prompt once for warming up and then `rounds` times with both, in alternating order."""
    speeds: dict[str, list[tuple[float, float]]] = {}
    with progress((rounds + 1) * len(prompts)) as report:
        for turn in range(rounds + 1):
            for index, prompt in enumerate(prompts):
                report(str(case), 1)
                order = [ours, theirs] if (turn + index) % 2 else [theirs, ours]
                found = {id(each): each.decode(case, prompt, max_tokens, threads) for each in order}
                mine, other = found[id(ours)], found[id(theirs)]
                if turn and mine["tokens"] == other["tokens"]:
                    pair = mine["milliseconds"], other["milliseconds"]
                    speeds.setdefault(prompt, []).append(pair)
    pairs = list(speeds.values())
    return Ratio(
        str(case),
        sum(map(len, pairs)),
        median_interval([[mine for mine, _ in each] for each in pairs]).median,
        median_interval([[other for _, other in each] for each in pairs]).median,
        median_interval([[mine / other for mine, other in each] for each in pairs]),
    )


def to_table(found: Sequence[Ratio], revision: str) -> Table:
    rows = tuple(
        (
            each.case,
            f"{each.milliseconds:.2f}",
            f"{each.other_milliseconds:.2f}",
            f"{each.ratio.median:.3f} ({each.ratio.low:.3f} to {each.ratio.high:.3f})",
            str(each.pairs),
            "reached" if each.reached else "missed",
        )
        for each in found
    )
    columns = ("case", "ms a step", f"ms a step at {revision}", "ratio (95 %)", "pairs", "goal")
    return Table(
        f"Time of a decoding step, median of pairs; goal {MAX_MEDIAN} (at most {MAX_HIGH})", columns, rows
    )


def main(
    revision: Annotated[str, typer.Argument(help="The commit, branch or tag to compare with.")],
    rounds: Annotated[int, typer.Option(min=1, help="Pairs per prompt.")] = 4,
    num_prompts: Annotated[int, typer.Option(min=2, help="Prompts of the code workload.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=8, help="New tokens per prompt.")] = 96,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 2,
    compiled: Annotated[bool, typer.Option(help="Compare compiled models too (extra `compile`).")] = True,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
) -> None:
    """Time plain decoding, a draft model and a head, with the zoo's models, against another revision."""
    prompts = [item.turns[0] for item in load_items("code", num_prompts)]
    with ExitStack() as stack:
        try:
            theirs = Worker(stack.enter_context(worktree(revision)))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        stack.callback(theirs.close)
        ours = Worker(ROOT)
        stack.callback(ours.close)
        modes = (False, True) if compiled else (False,)
        measure = partial(
            compare,
            ours=ours,
            theirs=theirs,
            prompts=prompts,
            rounds=rounds,
            max_tokens=max_tokens,
            threads=threads,
        )
        found = [
            measure(Case(method, mode, rows)) for mode in modes for method in METHODS for rows in BATCHES
        ]
    print_tables([to_table(found, revision)])
    if json_:
        write_json(
            json_,
            {
                "schema": "outpace-revisions/1",
                "provenance": provenance(),
                "other": revision,
                "ratios": [asdict(each) for each in found],
            },
        )


if __name__ == "__main__":
    typer.run(main)
