"""Cost to build, extend and query the shared indexes: `python -m benchmarks.indexes`.

Texts are synthetic: tokens from a Zipf distribution, a third of whose stretches of 100 tokens are copies of
earlier ones. Times are CPU time of this process. Compilation by numba, once per machine, comes before the
timing and is reported separately.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outpace.bench.measure.provenance import provenance
from outpace.bench.report.json_file import write_json
from outpace.console import progress
from outpace.core.tree import Shape
from outpace.drafters.lookup.token_recycling import AdjacencyTable
from outpace.indexes.automata.online import SuffixAutomaton
from outpace.indexes.automata.static import Pointer, StaticAutomaton
from outpace.indexes.suffix_array.array import SuffixArray
from outpace.recipes.training_free.aded.trigram_table import TrigramTable
from outpace.recipes.training_free.dresd.hidden_states import HiddenStateIndex
from outpace.recipes.training_free.stand.ngram_probabilities import NGramProbabilities
from outpace.recipes.training_free.suffix_decoding.suffix_tree import SuffixTree
from outpace.tables import Table, print_tables

DOCUMENT, NUM_CALLS, PART = 500, 2000, 100_000  # tokens per document; timed calls; tokens made at once
LEAST = 5 * NUM_CALLS  # minimum of --tokens: the operations below use this many
TREE = Shape((*[0] * 8, *[1] * 8, *[2] * 5, *[9] * 6, *[17] * 4))
Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class IndexCost:
    """CPU microseconds of one operation on one index, per token (whole texts) or per call."""

    index: str
    what: str
    tokens: int
    microseconds: float
    slowest: float | None  # 99th percentile of single calls; None: not timed singly
    bytes_per_token: float | None


def made_text(size: int, vocab: int = 50_000, seed: int = 0) -> Tokens:
    """A synthetic text: tokens from a Zipf distribution; a third of the stretches of 100 tokens are copies of
    earlier ones."""
    rng = np.random.default_rng(seed)
    text = (rng.zipf(1.2, size) % vocab).astype(np.int32)
    for start in range(100, size - 100, 100):
        if rng.random() < 1 / 3:
            source = int(rng.integers(0, start - 99))
            text[start : start + 100] = text[source : source + 100]
    return text


def each(call: Callable[[int], object], num: int) -> tuple[float, float]:
    """Mean and 99th percentile of `num` calls, in microseconds of CPU time."""
    took = np.empty(num)
    for index in range(num):
        began = process_time()
        call(index)
        took[index] = process_time() - began
    return 1e6 * float(took.mean()), 1e6 * float(np.percentile(took, 99))


def documents(text: Tokens) -> Iterable[Tokens]:
    return (text[start : start + DOCUMENT] for start in range(0, len(text), DOCUMENT))


def suffixes(size: int) -> list[IndexCost]:
    """Costs of the indexes that match a suffix of the text: built from whole texts, and extended token by
    token as in decoding."""
    text, more, found = made_text(size), made_text(NUM_CALLS + 64, seed=1), list[IndexCost]()
    more[: NUM_CALLS // 2] = text[: NUM_CALLS // 2]  # half of it occurs in the indexed text
    tokens = more.tolist()

    def note(name: str, what: str, took: tuple[float, float | None], num_bytes: float | None = None) -> None:
        found.append(IndexCost(name, what, size, *took, num_bytes))

    def bulk(call: Callable[[], Any]) -> tuple[Any, tuple[float, None]]:
        began = process_time()
        made = call()
        return made, (1e6 * (process_time() - began) / size, None)

    automaton, took = bulk(lambda: SuffixAutomaton(text))
    note("suffix automaton", "extend, whole text", took, automaton.nbytes / size)
    automaton.extend([0])  # enlarges the arrays before single calls are timed
    note(
        "suffix automaton", "extend, a token", each(lambda i: automaton.extend(tokens[i : i + 1]), NUM_CALLS)
    )
    note(
        "suffix automaton",
        "match 8, continuation of 40",
        each(lambda i: automaton.continuation(40, tokens[i : i + 8]), NUM_CALLS),
    )

    tree = SuffixTree(max_tokens=2 * size)

    def fill() -> SuffixTree:
        for number, document in enumerate(documents(text)):
            tree.extend(number, document)
            tree.finish(number)
        return tree

    tree, took = bulk(fill)
    note("suffix tree", "extend, whole texts", took, tree.nbytes / size)
    tree.extend(-1, [0])
    note("suffix tree", "extend, a token", each(lambda i: tree.extend(-1, tokens[i : i + 1]), NUM_CALLS))
    for kind in (False, True):
        what = f"speculate after 16, {'tree' if kind else 'path'}"
        note(
            "suffix tree",
            what,
            each(lambda i, kind=kind: tree.speculate(tokens[i : i + 16], tree=kind), NUM_CALLS),
        )
    note("suffix tree", f"evict {DOCUMENT} tokens", each(lambda i: tree.evict(), min(size // DOCUMENT, 100)))

    static, took = bulk(lambda: StaticAutomaton.build(documents(text)))
    note("static automaton", "build", took, static.nbytes / size)
    pointers = [Pointer()]
    step = each(lambda i: pointers.append(static.move(pointers[-1], tokens[i : i + 1])), NUM_CALLS)
    note("static automaton", "move, a token", step)
    note(
        "static automaton",
        "continuation tree, 60 nodes",
        each(lambda i: static.continuation_tree(pointers[i]), NUM_CALLS),
    )

    array, took = bulk(lambda: SuffixArray.build(documents(text)))
    note("suffix array", "build", took, array.nbytes / size)
    note("suffix array", "find", each(lambda i: array.find(tokens[i : i + 16]), NUM_CALLS))
    note(
        "suffix array",
        "continuation tree, 64 nodes",
        each(lambda i: array.continuation_tree(tokens[i : i + 16]), NUM_CALLS),
    )
    return found


def tables(size: int) -> list[IndexCost]:
    """Costs of the tables of successors of a token, a pair of tokens, an n-gram or a hidden state."""
    text, found = made_text(size).tolist(), list[IndexCost]()
    rng = np.random.default_rng(0)
    adjacency = AdjacencyTable(50_000)
    rows = rng.integers(0, 50_000, (80, 8)).astype(np.int32)
    took = each(lambda i: adjacency.update(text[i : i + 80], rows), NUM_CALLS)
    found.append(IndexCost("adjacency", "update 80 rows", 50_000, *took, adjacency.nbytes / 50_000))
    draft = each(lambda i: adjacency.draft(text[i], TREE), NUM_CALLS)
    found.append(IndexCost("adjacency", f"draft {len(TREE.parents)} nodes", 50_000, *draft, None))

    began = process_time()
    trigrams = TrigramTable.build(documents(np.array(text, np.int32)))
    took = 1e6 * (process_time() - began) / size, None
    found.append(IndexCost("trigrams", "build", size, *took, trigrams.nbytes / size))
    found.append(
        IndexCost(
            "trigrams",
            "adapt to 16",
            size,
            *each(lambda i: trigrams.adapt(text[i : i + 16]), NUM_CALLS),
            None,
        )
    )
    cost = each(lambda i: trigrams.successors(text[i], text[i + 1]), NUM_CALLS)
    found.append(IndexCost("trigrams", "successors", size, *cost, None))

    ngrams, ids, probs = NGramProbabilities(), rng.integers(0, 50_000, (4, 10)), rng.random((4, 10))
    took = each(lambda i: ngrams.update(text[4 * i : 4 * i + 8], ids, probs), NUM_CALLS)
    found.append(
        IndexCost(
            "n-gram probabilities",
            "update 4 positions",
            4 * NUM_CALLS,
            *took,
            ngrams.nbytes / (4 * NUM_CALLS),
        )
    )
    cost = each(lambda i: ngrams.lookup(text[i : i + 4]), NUM_CALLS)
    found.append(IndexCost("n-gram probabilities", "lookup", 4 * NUM_CALLS, *cost, None))

    states = rng.normal(size=(20_000, 256)).astype(np.float32)
    dense = HiddenStateIndex.build(states, rng.integers(0, 50_000, (20_000, 20)))
    dense.search(states[0])
    cost = each(lambda i: dense.search(states[i]), 200)
    found.append(IndexCost("hidden states", "50 nearest of all", 20_000, *cost, dense.nbytes / 20_000))
    return found


def build_alone(size: int) -> dict[str, float]:
    """Seconds and peak memory in MiB of building a suffix array in a separate process."""
    program = f"from benchmarks.indexes import alone; alone({size})"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    seconds, before, peak = map(float, out.split())
    return {"tokens": size, "seconds": seconds, "peak_mib": peak, "before_mib": before}


def alone(size: int) -> None:
    """Program of the process of `build_alone`: prints seconds, and peak memory in MiB before building and
    overall."""
    texts = [made_text(min(PART, size - start), seed=start) for start in range(0, size, PART)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = perf_counter()
    SuffixArray.build(texts)
    print(perf_counter() - began, before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def to_table(found: Sequence[IndexCost], compiled: float) -> Table:
    rows = [
        (
            f"{cost.index}: {cost.what}",
            f"{cost.tokens:,}",
            f"{cost.microseconds:.2f}",
            "-" if cost.slowest is None else f"{cost.slowest:.1f}",
            "-" if cost.bytes_per_token is None else f"{cost.bytes_per_token:.0f}",
        )
        for cost in found
    ]
    columns = (
        "microseconds",
        "tokens held",
        "per token or call",
        "99th percentile of calls",
        "bytes per token",
    )
    how = f"numba, {compiled:.1f} s before the first answers" if find_spec("numba") else "without numba"
    return Table(f"Indexes ({how})", columns, tuple(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.indexes", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of the texts")
    parser.add_argument(
        "--alone", type=int, default=10_000_000, help="of a suffix array built alone; 0: none"
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if given.tokens < LEAST:
        parser.error(f"--tokens is at least {LEAST}")
    with progress(4) as tell:
        tell("suffix array, alone", 0)
        # first: a child process inherits the peak memory of its parent
        large = build_alone(given.alone) if given.alone else None
        tell("compiling", 1)
        began = perf_counter()
        for measure in (suffixes, tables):
            measure(LEAST)
        compiled = perf_counter() - began
        tell("suffixes", 1)
        found = suffixes(given.tokens)
        tell("tables", 1)
        found += tables(given.tokens)
    print_tables([to_table(found, compiled)])
    if large:
        print(
            f"\nA suffix array of {large['tokens']:,} tokens alone: {large['seconds']:.1f} s, "
            f"{large['peak_mib']:.0f} MiB at most, {large['before_mib']:.0f} of them before"
        )
    if given.json:
        data = {
            "schema": "outpace-indexes/1",
            "provenance": provenance(),
            "settings": {"tokens": given.tokens, "alone": given.alone},
            "seconds_before": compiled,
            "microseconds": [asdict(cost) for cost in found],
            "alone": large,
        }
        write_json(given.json, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
