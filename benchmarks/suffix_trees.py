"""Suffix trees of outpace and of Snowflake compared: `python -m benchmarks.suffix_trees --peer
arctic=PYTHON`.

A model generates texts: every prompt greedily, and every fourth prompt several times sampled. Both
implementations then draft for the same texts in the same order with the same settings. arctic-inference runs
in a separate Python environment.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.peers.environments import WORKERS, PeerEngine, find_environment
from benchmarks.peers.worker import PeerFailed, PeerRefused, Worker, environment_of
from benchmarks.peers.workers.arctic_suffix import replayed
from outpace.bench.measure import replay
from outpace.bench.measure.contender import MethodContender
from outpace.bench.measure.line_up import find
from outpace.bench.measure.method_names import PLAIN
from outpace.bench.measure.provenance import provenance, threads
from outpace.bench.measure.replay import RecordedText
from outpace.bench.measure.run import encode_prompts
from outpace.bench.measure.workload import BUILT_IN, load_items
from outpace.bench.report.json_file import write_json
from outpace.bench.report.tables import number, percent
from outpace.console import progress
from outpace.core.sampling_params import SamplingParams
from outpace.models.hf.target import load
from outpace.models.names import resolve
from outpace.recipes import get
from outpace.recipes.training_free.suffix_decoding.suffix_tree import SuffixTree
from outpace.tables import Table, print_tables

SCHEMA = "outpace-suffix-trees/1"
ARCTIC = PeerEngine(
    "arctic",
    "arctic_inference",
    ("arctic-inference",),
    "numpy arctic-inference",
    WORKERS / "arctic_suffix.py",
)
# options of the recipe suffix-decoding (not its defaults), the same for both implementations
SETTINGS = {
    "max_tree_depth": 64,
    "depth": 24,
    "max_spec_factor": 1.0,
    "max_spec_offset": 0.0,
    "min_token_prob": 0.1,
}
TREES, METHOD, PEER = "outpace, its trees", "outpace, suffix-decoding", "arctic-inference"
SAMPLES, TEMPERATURE, BATCH, SEED = 4, 1.0, 8, 0
COLUMNS = (
    "who",
    "texts",
    "draft",
    "tokens a step",
    "drafted a step",
    "of them kept",
    "microseconds a token",
)


class Trees:
    """A Cache (bench.peers.workers.arctic_suffix) with outpace's suffix trees: the tree operations of the
    drafter of suffix-decoding, without the engine."""

    def __init__(self, depth: int, **settings: Any) -> None:
        self.depth, self.settings, self.learnt = depth, settings, 0
        self.common = SuffixTree(depth)

    def begin(self, prompt: Any) -> None:
        self.own = SuffixTree(self.depth)
        self.own.extend(0, prompt)
        self.generated: list[int] = []

    def draft(self, context: Any, max_tokens: int) -> tuple[Sequence[int], Sequence[int]]:
        found = self.own.speculate(context, max_tokens, **self.settings)
        if self.common.num_tokens:
            other = self.common.speculate(context, max_tokens, extra_occurrences=1, **self.settings)
            found = max(found, other, key=lambda each: each.expected_accepted)
        return found.tokens, found.parents

    def add(self, tokens: Any) -> None:
        self.own.extend(0, tokens)
        self.generated += tokens.tolist()

    def end(self) -> None:
        self.common.extend(self.learnt, self.generated)
        self.common.finish(self.learnt)
        self.learnt += 1


def recorded(name: str, num_prompts: int, max_tokens: int) -> dict[str, list[RecordedText]]:
    """Texts that the model generates, by kind: one greedy text per prompt, and SAMPLES sampled ones for every
    fourth prompt."""
    target, tokenizer = load(resolve(name), device="cpu")
    end = getattr(tokenizer, "eos_token_id", None)
    stop = () if end is None else (int(end),)
    plain = MethodContender("plain", PLAIN, get(PLAIN)(target))
    greedy = SamplingParams(max_tokens=max_tokens, stop=stop)
    items = [item for source in BUILT_IN for item in load_items(source, num_prompts)]
    cases, _ = encode_prompts(items, tokenizer, plain, greedy, max_length=target.max_length)
    prompts = [case.tokens for case in cases]
    some = [prompt for prompt in prompts[::4] for _ in range(SAMPLES)]
    prompts_by_kind = {
        "greedy": [(prompt, greedy) for prompt in prompts],
        f"{SAMPLES} samples": [
            (prompt, SamplingParams(TEMPERATURE, max_tokens=max_tokens, stop=stop, seed=SEED + number))
            for number, prompt in enumerate(some)
        ],
    }
    found: dict[str, list[RecordedText]] = {kind: [] for kind in prompts_by_kind}
    with progress(sum(map(len, prompts_by_kind.values()))) as advance:
        for kind, pairs in prompts_by_kind.items():
            for begin in range(0, len(pairs), BATCH):
                some_prompts, row_params = zip(*pairs[begin : begin + BATCH], strict=True)
                outputs = plain.run(some_prompts, row_params).outputs
                found[kind] += [
                    RecordedText(p.tolist(), o) for p, o in zip(some_prompts, outputs, strict=True) if o
                ]
                advance(f"writing texts, {kind}", len(outputs))
    return found


def ours(texts: Sequence[RecordedText], tree: bool) -> list[list[float]]:
    """Draft with outpace's trees, without the engine; per text [steps, drafted, accepted, seconds]."""
    settings = {
        "max_spec_factor": SETTINGS["max_spec_factor"],
        "max_spec_offset": SETTINGS["max_spec_offset"],
        "min_token_prob": SETTINGS["min_token_prob"],
    }
    trees = Trees(int(SETTINGS["max_tree_depth"]), tree=tree, **settings)
    return replayed(trees, [(text.prompt, text.tokens) for text in texts], int(SETTINGS["depth"]))


def theirs(worker: Worker, texts: Sequence[RecordedText], tree: bool) -> list[list[float]]:
    """Draft with arctic-inference's cache in a worker process; per text [steps, drafted, accepted,
    seconds]."""
    return worker.request(
        {**SETTINGS, "tree": tree, "texts": [(text.prompt, text.tokens) for text in texts]}
    )["outputs"]


def through_the_engine(texts: Sequence[RecordedText], tree: bool, vocab: int) -> list[list[float]]:
    """Draft with the recipe suffix-decoding in the engine's loop; per text [steps, drafted, accepted,
    seconds], where seconds are the median step's times the number of steps."""
    parts = replay.build(find("suffix-decoding"), {**SETTINGS, "tree": tree}, vocab)
    found = replay.replay(METHOD, parts, texts)
    step = median(found.seconds)
    return [[each.row_steps, each.drafted, each.accepted, step * each.row_steps] for each in found.each]


def row(
    who: str, kind: str, tree: bool, texts: Sequence[RecordedText], runs: Sequence[Sequence[Sequence[float]]]
) -> Any:
    """A result row: sums over the texts, from the fastest of several runs (counts are the same in all)."""
    steps, drafted, accepted, seconds = min(
        (np.sum(run, 0).tolist() for run in runs), key=lambda sums: sums[3]
    )
    tokens = sum(len(text.tokens) for text in texts)
    return {
        "who": who,
        "texts": kind,
        "tree": tree,
        "num_texts": len(texts),
        "tokens": tokens,
        "steps": int(steps),
        "drafted": int(drafted),
        "accepted": int(accepted),
        "mean_acceptance_length": tokens / steps,
        "acceptance_rate": accepted / drafted if drafted else None,
        "microseconds_per_token": 1e6 * seconds / tokens,
    }


def compare(
    written: dict[str, list[RecordedText]], worker: Worker | None, repeats: int
) -> list[dict[str, Any]]:
    """Result rows for every kind of texts, for chains and for trees as drafts; implementations are
    interleaved."""
    vocab = 1 + max(max(*text.prompt, *text.tokens) for texts in written.values() for text in texts)
    sides: dict[str, Any] = {TREES: ours, METHOD: lambda texts, tree: through_the_engine(texts, tree, vocab)}
    if worker:
        sides[PEER] = lambda texts, tree: theirs(worker, texts, tree)
    rows: list[dict[str, Any]] = []
    with progress(len(written) * 2 * repeats * len(sides)) as advance:
        for kind, texts in written.items():
            for tree in (False, True):
                runs: dict[str, list[Any]] = {who: [] for who in sides}
                for side in sides.values():
                    side(texts[:2], tree)  # numba loops are compiled before they are timed
                for _ in range(repeats):
                    for who, side in sides.items():
                        runs[who].append(side(texts, tree))
                        advance(f"{who}, {kind}", 1)
                rows += [row(who, kind, tree, texts, each) for who, each in runs.items()]
    return rows


def to_table(rows: Sequence[dict[str, Any]]) -> Table:
    cells = tuple(
        (
            each["who"],
            each["texts"],
            "tree" if each["tree"] else "path",
            number(each["mean_acceptance_length"], 3),
            number(each["drafted"] / each["steps"], 2),
            percent(each["acceptance_rate"]),
            number(each["microseconds_per_token"], 1),
        )
        for each in rows
    )
    return Table("Suffix trees on the same texts", COLUMNS, cells)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suffix_trees", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--peer", help="arctic=/path/to/python, of an environment with arctic-inference; default: none"
    )
    parser.add_argument("--target", default="zoo:target", help="who writes the texts")
    parser.add_argument("--num-prompts", type=int, default=40, help="of each of the built-in sets")
    parser.add_argument("--max-tokens", type=int, default=96, help="of a text")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    name, _, python = (given.peer or ARCTIC.name).partition("=")
    if name != ARCTIC.name:
        parser.error(f"there is no peer {name!r}: --peer takes {ARCTIC.name}=/path/to/python")
    worker = None
    try:
        peer = find_environment(ARCTIC, python or None) if given.peer else None
        with threads(given.threads) as num_threads:
            if peer:
                environment = environment_of(os.environ, 1, own=peer.own)
                worker = Worker(peer.python, ARCTIC.script, {}, environment)
                worker.ready()
            rows = compare(recorded(given.target, given.num_prompts, given.max_tokens), worker, given.repeats)
            known = {**provenance(), "threads": num_threads}
    except (ValueError, PeerFailed, PeerRefused) as error:
        print(f"suffix_trees: {error}", file=sys.stderr)
        return 2
    finally:
        if worker:
            worker.close()
    print_tables([to_table(rows)])
    if given.json:
        known["versions"] = {**known["versions"], **(peer.versions if peer else {})}
        wished = {name: getattr(given, name) for name in ("target", "num_prompts", "max_tokens", "repeats")}
        settings = {**SETTINGS, **wished, "samples": SAMPLES, "temperature": TEMPERATURE}
        write_json(given.json, {"schema": SCHEMA, "provenance": known, "settings": settings, "results": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
