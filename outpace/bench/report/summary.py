"""From runs to rows of a table: one a contender, workload and temperature, of all prompts or those that do not loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from statistics import median
from typing import Any

from outpace.bench.measure.acceptance_ceiling import Best, Bounds
from outpace.bench.measure.bootstrap import Interval, bootstrap
from outpace.bench.measure.contender import Contender
from outpace.bench.measure.halves import Half, in_halves, rate
from outpace.bench.measure.ideal import Costs, ideal_speedup
from outpace.bench.measure.metrics import Counts
from outpace.bench.measure.run import Run

MOST_REPETITION = 0.15  # a looping text flatters every drafter
FEWEST_PROMPTS = 3  # below it the selection says nothing
FEWEST_TOKENS = 8  # a shorter answer times the reading of its prompt
ALL, VARIED = "all", "varied"
SELECTIONS = {
    ALL: "all prompts, also those whose output loops",
    VARIED: "those whose plain output repeats at most 15 % of its 4-grams",
}


@dataclass(frozen=True)
class Row:
    """What is reported of one contender under one selection of runs."""

    contender: str
    kind: str
    workload: str
    temperature: float | None  # None: all of them pooled
    selection: str
    prompts: int
    runs: int
    tokens_per_second: Interval
    speedup: Interval
    speedup_of_totals: float
    repetition: float
    lossless: bool
    mode: str = ""  # how its forwards ran
    decode_speedup: float | None = None  # over plain decoding in the same mode, reading prompts left out
    ideal_speedup: float | None = None  # of that, what acceptance and the measured costs of forwards allow
    different: int | None = None  # greedy texts that differ from plain decoding's
    compared: int = 0
    first_difference: float | None = None  # median position among those that differ
    counts: Counts | None = None
    best: Best | None = None  # first tokens kept, and the most that could be; of steps that were not timed
    options: Mapping[str, Any] = field(default_factory=dict)
    precision: str = ""  # what it really computed in
    passes: int = 1  # how often a prompt was asked in a round
    halves: tuple[Half, Half] | None = None  # of the prompts, in the order they came in

    @property
    def efficiency(self) -> float | None:
        """How much of the ideal speedup was reached."""
        if self.decode_speedup is None or not self.ideal_speedup:
            return None
        return self.decode_speedup / self.ideal_speedup

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.contender,
            "kind": self.kind,
            "mode": self.mode or None,
            "precision": self.precision,
            "options": {key: value for key, value in self.options.items() if _is_plain(value)},
            "workload": self.workload,
            "temperature": self.temperature,
            "selection": self.selection,
            "prompts": self.prompts,
            "runs": self.runs,
            "tokens_per_second": self.tokens_per_second.to_json(),
            "speedup": self.speedup.to_json(),
            "speedup_of_totals": self.speedup_of_totals,
            "decode_speedup": self.decode_speedup,
            "ideal_speedup": self.ideal_speedup,
            "efficiency": self.efficiency,
            "repetition": self.repetition,
            "lossless": self.lossless,
            "divergence": {
                "compared": self.compared,
                "different": self.different,
                "median_first_position": self.first_difference,
            },
            **(self.counts.figures() if self.counts else {}),
            "first_token": self.best.to_json() if self.best else None,
            "passes": self.passes,
            "halves": dict(zip(("first", "second"), (half.to_json() for half in self.halves), strict=True))
            if self.halves
            else None,
        }


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


Key = tuple[int, float, int, int]


def key(run: Run) -> Key:
    """What two runs share that may be compared."""
    return run.trial.index, run.trial.temperature, run.trial.round, run.trial.again


def varied(plain: Sequence[Run]) -> set[tuple[int, float]]:
    """(batch, temperature) whose plain output seldom repeats itself, over all rounds."""
    found: dict[tuple[int, float], list[float]] = {}
    for run in plain:
        found.setdefault((run.trial.index, run.trial.temperature), []).append(run.repetition)
    return {name for name, rates in found.items() if sum(rates) / len(rates) <= MOST_REPETITION}


def summarise(
    runs: Sequence[Run],
    contenders: Sequence[Contender],
    plain: str,
    *,
    plains: Mapping[str, str] | None = None,  # mode -> its plain decoding, where that is another
    costs: Costs | None = None,
    bounds: Bounds | None = None,
    seed: int = 0,
) -> list[Row]:
    """Every row there is something to say about: per temperature and pooled, per workload and over all."""
    named = {plain, *(plains or {}).values()}
    references = {name: {key(run): run for run in runs if run.contender == name} for name in named}
    reference = references[plain]
    kept = varied(list(reference.values()))
    workloads = list(dict.fromkeys(run.trial.workload for run in runs))
    temperatures: list[float | None] = list(dict.fromkeys(run.trial.temperature for run in runs))
    if len(workloads) > 1:
        workloads.append("all")
    if len(temperatures) > 1:
        temperatures.append(None)
    rows: list[Row] = []
    met = {(run.contender, run.trial.temperature) for run in runs}
    for temperature, workload, selection in product(temperatures, workloads, (ALL, VARIED)):
        pooled = temperatures[:-1] if temperature is None else []  # a row of all temperatures met all of them
        whole = [each for each in contenders if all((each.name, heat) in met for heat in pooled)]

        def chosen(run: Run, t: float | None = temperature, w: str = workload, s: str = selection) -> bool:
            at = run.trial
            here = t in (None, at.temperature) and w in ("all", at.workload)
            return here and (s == ALL or (at.index, at.temperature) in kept)

        for contender in whole:
            own = references[(plains or {}).get(contender.mode, plain)]
            row = _row(runs, reference, own, contender, chosen, costs or {}, seed)
            if row:
                at = {"workload": workload, "temperature": temperature, "selection": selection}
                rows.append(Row(**at, best=_best(bounds or {}, contender.name, workload, temperature), **row))
    return rows


def _best(bounds: Bounds, contender: str, workload: str, temperature: float | None) -> Best | None:
    """The sum over what a row pools; None where nothing was drawn."""
    parts = [
        best
        for (name, where, heat), best in bounds.items()
        if name == contender and workload in ("all", where) and temperature in (None, heat)
    ]
    return reduce(Best.__add__, parts) if parts else None


def _row(
    runs: Sequence[Run],
    reference: Mapping[Key, Run],
    own: Mapping[Key, Run],  # plain decoding in the contender's mode
    contender: Contender,
    chosen: Callable[[Run], bool],
    costs: Costs,
    seed: int,
) -> dict[str, Any] | None:
    pairs = [
        (run, reference[key(run)])
        for run in runs
        if run.contender == contender.name and chosen(run) and key(run) in reference
    ]
    if not pairs:
        return None
    alike = [(run, own[key(run)]) for run, _ in pairs if key(run) in own]
    # what plain decoding writes in another mode is compared with the reference, what methods write with plain decoding
    texts = pairs if any(run is plain for run, plain in alike) else alike
    timed = [pair for pair in pairs if min(run.tokens for run in pair) >= FEWEST_TOKENS] or pairs
    asked: dict[tuple[int, float, int], list[tuple[Run, Run]]] = {}  # a prompt that came again is one prompt
    for run, plain in timed:
        asked.setdefault(key(run)[:3], []).append((run, plain))
    speeds: dict[tuple[int, float], list[float]] = {}
    ratios: dict[tuple[int, float], list[float]] = {}
    for (index, temperature, _), met in asked.items():
        speed = rate([run for run, _ in met])
        speeds.setdefault((index, temperature), []).append(speed)
        ratios.setdefault((index, temperature), []).append(speed / rate([plain for _, plain in met]))
    greedy = [found for run, plain in texts if run.trial.temperature == 0 for found in run.differences(plain)]
    places = [place for place in greedy if place is not None]
    counted = [run.counts for run, _ in pairs]
    counts = reduce(Counts.__add__, [c for c in counted if c], Counts()) if all(counted) else None
    return {
        "contender": contender.name,
        "kind": contender.kind,
        "mode": contender.mode,
        "precision": contender.precision,
        "options": contender.options,
        "prompts": len({case.id for run, _ in pairs for case in run.trial.cases}),
        "runs": len(pairs),
        "tokens_per_second": bootstrap(list(speeds.values()), seed=seed),
        "speedup": bootstrap(list(ratios.values()), seed=seed),
        "speedup_of_totals": _ratio_of_totals(timed, lambda run: run.seconds) or float("nan"),
        "decode_speedup": _ratio_of_totals(alike, lambda run: run.decode_seconds),
        "ideal_speedup": ideal_speedup(alike, costs, contender.mode),
        "repetition": sum(run.repetition for run, _ in pairs) / len(pairs),
        "lossless": all(contender.lossless(run.trial.temperature) for run, _ in pairs),
        "different": len(places) if greedy else None,
        "compared": len(greedy),
        "first_difference": median(places) if places else None,
        "counts": counts,
        "passes": 1 + max(run.trial.again for run, _ in pairs),
        "halves": in_halves(pairs),
    }


def _ratio_of_totals(
    pairs: Sequence[tuple[Run, Run]], seconds: Callable[[Run], float | None]
) -> float | None:
    rates: list[float] = []
    for side in (0, 1):
        spent = [seconds(pair[side]) for pair in pairs]
        total = sum(value for value in spent if value is not None)
        if None in spent or total <= 0:
            return None
        rates.append(sum(pair[side].tokens for pair in pairs) / total)
    return rates[0] / rates[1] if rates[1] else None


def headline(rows: Sequence[Row], workload: str, temperature: float | None) -> list[Row]:
    """The rows a table shows: of prompts that do not loop, unless there are too few of them."""
    here = [row for row in rows if row.workload == workload and row.temperature == temperature]
    strict = [row for row in here if row.selection == VARIED]
    enough = bool(strict) and min(row.prompts for row in strict) >= FEWEST_PROMPTS
    return strict if enough else [row for row in here if row.selection == ALL]
