"""Compare two methods in a JSON file of `outpace bench`: ratios of paired runs, with 95 % intervals over
prompts. What is compared is a name of `MEASURES`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outpace.bench.measure.bootstrap import Interval, median_interval
from outpace.bench.report.summary import MAX_REPETITION, MIN_TOKENS, VARIED

ANY = "*"  # at the end of a name: the fastest of all methods or settings with this prefix
OR = "|"  # between names: the fastest of them
Result = Mapping[str, Any]  # a parsed result file
Key = tuple[tuple[str, ...], float, int, int]  # prompts, temperature, round, repetition


@dataclass(frozen=True)
class Comparison:
    """What was measured of one method and its ratio to another's on the same prompts, rounds and seeds."""

    method: str
    over: str
    tried: int  # number of settings or methods of which this one is the best
    prompts: int
    value: Interval  # of `measure`, such as tokens per second
    ratio: Interval  # median of the pairs' ratios


class DirtyCommit(ValueError):
    """Raised for a result that was measured on uncommitted changes, which must not be published."""


def load(path: Path) -> Result:
    """Parse a result file, published ones are .json.gz; DirtyCommit if it was measured on uncommitted
    changes."""
    content = path.read_bytes()
    data = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    if str(data.get("provenance", {}).get("commit", "")).endswith("+"):
        raise DirtyCommit(f"{path.name} was measured on uncommitted changes: commit them and measure again")
    return data


def compare(
    data: Result,
    method: str,
    over: str = "plain",
    *,
    workload: str,
    temperature: float,
    selection: str = VARIED,
    measure: str = "speed",
) -> Comparison | None:
    """Compare `method` with `over` by a name of `MEASURES`; None if either was not measured. A name that ends
    with * stands for the fastest method with that prefix, names with | between them for the fastest of them.
    `selection`: all prompts, or VARIED, those whose
    plain output repeats little."""
    runs = _selected(data, workload, temperature, selection)
    ours, theirs = (_fastest(runs, name) for name in (method, over))
    if ours is None or theirs is None:
        return None
    pairs = _pairs(runs, ours[0], theirs[0])
    seed = int(data["settings"].get("seed", 0))
    return Comparison(
        ours[0],
        theirs[0],
        ours[1],
        len({prompt for prompts in pairs for prompt in prompts}),
        median_interval([[MEASURES[measure](run) for run, _ in each] for each in pairs.values()], seed=seed),
        median_interval(_ratios(pairs, measure), seed=seed),
    )


def _pairs(
    runs: Sequence[Mapping[str, Any]], method: str, over: str
) -> dict[tuple[str, ...], list[tuple[Mapping[str, Any], Mapping[str, Any]]]]:
    """Pairs of runs of both methods with the same prompts, temperature, round and repetition, grouped by
    prompts."""
    mine, other = _by_key(runs, method), _by_key(runs, over)
    shared = [key for key in mine if key in other]
    long = [key for key in shared if min(mine[key]["tokens"], other[key]["tokens"]) >= MIN_TOKENS] or shared
    found: dict[tuple[str, ...], list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for key in long:
        found.setdefault(key[0], []).append((mine[key], other[key]))
    return found


def _ratios(
    pairs: Mapping[Any, Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]], measure: str = "speed"
) -> list[list[float]]:
    of = MEASURES[measure]
    return [[of(run) / of(base) for run, base in each] for each in pairs.values()]


def _selected(data: Result, workload: str, temperature: float, selection: str) -> list[Mapping[str, Any]]:
    """Runs of this workload ("all": of every one) and temperature; for the selection VARIED only of prompts
    whose plain output repeats little."""
    runs = [
        run
        for run in data.get("runs", [])
        if workload in ("all", run["workload"]) and run["temperature"] == temperature
    ]
    if selection != VARIED:
        return runs
    rates: dict[tuple[str, ...], list[float]] = {}
    for run in runs:
        if run["method"] == "plain":
            rates.setdefault(tuple(run["prompts"]), []).append(run["repetition"])
    kept = {prompts for prompts, each in rates.items() if sum(each) / len(each) <= MAX_REPETITION}
    return [run for run in runs if tuple(run["prompts"]) in kept]


def _fastest(runs: Sequence[Mapping[str, Any]], name: str) -> tuple[str, int] | None:
    """The method of this name or, for a name with * or |, the one with the largest median speedup over plain
    decoding among those it stands for; and the number of settings it is the best of. None if it was not
    measured."""
    names = {run["method"] for run in runs}
    if not name.endswith(ANY) and OR not in name:
        return (name, 1) if name in names else None
    parts = name.split(OR)
    matching = sorted(each for each in names if any(_is_meant(each, part) for part in parts))
    if not matching:
        return None
    medians = {each: median_interval(_ratios(_pairs(runs, each, "plain"))).median for each in matching}
    best = max(matching, key=lambda each: medians[each])
    tried = best.rpartition("best of ")[2].removesuffix(" settings")
    return best, int(tried) if tried.isdigit() else len(matching)


def _is_meant(method: str, name: str) -> bool:
    return method.startswith(name.removesuffix(ANY)) if name.endswith(ANY) else method == name


def _speed(run: Mapping[str, Any]) -> float:
    return run["tokens"] / max(run["seconds"], 1e-9)


def _acceptance_length(run: Mapping[str, Any]) -> float:
    return run["tokens"] / max(run["steps"], 1)


MEASURES: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "speed": _speed,  # tokens per second
    "acceptance length": _acceptance_length,  # tokens per step
}


def _by_key(runs: Sequence[Mapping[str, Any]], method: str) -> dict[Key, Mapping[str, Any]]:
    found: dict[Key, Mapping[str, Any]] = {}
    for run in runs:
        if run["method"] != method:
            continue
        prompts, again = tuple(run["prompts"]), 0
        while (key := (prompts, run["temperature"], run["round"], again)) in found:
            again += 1
        found[key] = run
    return found
