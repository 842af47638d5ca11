"""Aggregate timed runs into result rows: one per contender, workload, temperature and selection of
prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from statistics import median
from typing import Any

from outpace.bench.measure.acceptance_bound import AcceptanceBound, AcceptanceBounds
from outpace.bench.measure.bootstrap import Interval, median_interval
from outpace.bench.measure.contender import Contender
from outpace.bench.measure.halves import HalfSummary, in_halves, rate
from outpace.bench.measure.ideal import Costs, ideal_speedup
from outpace.bench.measure.metrics import Counts
from outpace.bench.measure.quality import Quality, quality_of
from outpace.bench.measure.run import Run

MAX_REPETITION = 0.15  # share of repeated 4-grams: repetitive text is easy to draft for every method
MIN_TOKENS = 8  # shorter outputs are left out of speeds: most of their time is prefill
ALL, VARIED = "all", "varied"
SELECTIONS = {
    ALL: "all prompts, also those whose plain output repeats itself",
    VARIED: "only prompts whose plain output repeats at most 15 % of its 4-grams",
}


@dataclass(frozen=True)
class ResultRow:
    """The results of one contender on one selection of prompts.

    The intervals of tokens/s, plain tokens/s and speedup are over the same pairs of runs: the contender's and
    plain decoding's on the same prompt, in the same round, with the same seed. A prompt contributes one
    value: the median over its rounds.
    """

    contender: str
    kind: str
    workload: str
    temperature: float | None  # None: all temperatures pooled
    selection: str
    prompts: int
    runs: int
    tokens_per_second: Interval
    plain_tokens_per_second: Interval  # tokens/s of plain decoding in the same pairs
    speedup: Interval  # over plain decoding: median of the pairs' ratios, not ratio of the two medians above
    speedup_of_totals: float
    repetition: float
    lossless: bool
    mode: str = ""  # COMPILED or EAGER forwards; "": unknown
    # speedup over plain decoding in this mode, without the steps that read the prompt
    decode_speedup: float | None = None
    ideal_speedup: float | None = None  # speedup if a step cost only its target and draft forwards
    # median over the prompts of decode_speedup / ideal_speedup, both computed for one prompt; None if no
    # draft tokens were proposed or forwards were not timed
    efficiency: Interval | None = None
    different: int | None = None  # number of greedy outputs that differ from plain decoding's
    compared: int = 0
    first_difference: float | None = None  # median index of the first differing token
    counts: Counts | None = None
    first_token: AcceptanceBound | None = None  # acceptance of the first draft token, and its upper bound
    options: Mapping[str, Any] = field(default_factory=dict)
    precision: str = ""  # data type of the computation, such as bf16
    repeat: int = 1  # how often each prompt was decoded in a round
    halves: tuple[HalfSummary, HalfSummary] | None = None  # first and second half of the prompts
    quality: Quality | None = None  # of the texts; None: not measured, as those of lossless methods

    @property
    def too_few_prompts(self) -> bool:
        """Whether there are too few prompts for an interval, and so for any statement about the speedup."""
        return not self.speedup.known

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
            "too_few_prompts": self.too_few_prompts,
            "tokens_per_second": self.tokens_per_second.to_json(),
            "plain_tokens_per_second": self.plain_tokens_per_second.to_json(),
            "speedup": self.speedup.to_json(),
            "speedup_of_totals": self.speedup_of_totals,
            "decode_speedup": self.decode_speedup,
            "ideal_speedup": self.ideal_speedup,
            "efficiency": self.efficiency.to_json() if self.efficiency else None,
            "repetition": self.repetition,
            "lossless": self.lossless,
            "divergence": {
                "compared": self.compared,
                "different": self.different,
                "median_first_position": self.first_difference,
            },
            **(self.counts.figures() if self.counts else {}),
            "first_token": self.first_token.to_json() if self.first_token else None,
            "repeat": self.repeat,
            "halves": dict(zip(("first", "second"), (half.to_json() for half in self.halves), strict=True))
            if self.halves
            else None,
            "quality": self.quality.to_json() if self.quality else None,
        }


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


Key = tuple[int, float, int, int]


def key(run: Run) -> Key:
    """Batch index, temperature, round and repetition of a run: runs of two contenders with equal keys form a
    pair."""
    return run.trial.index, run.trial.temperature, run.trial.round, run.trial.again


def varied(plain: Sequence[Run]) -> set[tuple[int, float]]:
    """(Batch index, temperature) of the batches whose plain outputs repeat at most 15 % of their 4-grams,
    averaged over rounds."""
    rates: dict[tuple[int, float], list[float]] = {}
    for run in plain:
        rates.setdefault((run.trial.index, run.trial.temperature), []).append(run.repetition)
    return {name for name, each in rates.items() if sum(each) / len(each) <= MAX_REPETITION}


def summarise(
    runs: Sequence[Run],
    contenders: Sequence[Contender],
    plain: str,
    *,
    plains: Mapping[str, str] | None = None,  # mode -> name of plain decoding in that mode
    costs: Costs | None = None,
    bounds: AcceptanceBounds | None = None,
    seed: int = 0,
) -> list[ResultRow]:
    """A result row for each contender, temperature (and all pooled), workload (and all together) and
    selection."""
    names = {plain, *(plains or {}).values()}
    references = {name: {key(run): run for run in runs if run.contender == name} for name in names}
    reference = references[plain]
    kept = varied(list(reference.values()))
    workloads = list(dict.fromkeys(run.trial.workload for run in runs))
    temperatures: list[float | None] = list(dict.fromkeys(run.trial.temperature for run in runs))
    if len(workloads) > 1:
        workloads.append("all")
    if len(temperatures) > 1:
        temperatures.append(None)
    rows: list[ResultRow] = []
    measured = {(run.contender, run.trial.temperature) for run in runs}
    for temperature, workload, selection in product(temperatures, workloads, (ALL, VARIED)):
        pooled = temperatures[:-1] if temperature is None else []  # the temperatures that a pooled row needs
        complete = [each for each in contenders if all((each.name, heat) in measured for heat in pooled)]

        def here(run: Run, t: float | None = temperature, w: str = workload) -> bool:
            return t in (None, run.trial.temperature) and w in ("all", run.trial.workload)

        def selected(run: Run, s: str = selection) -> bool:
            return s == ALL or (run.trial.index, run.trial.temperature) in kept

        for contender in complete:
            pairs = [
                (run, reference[key(run)])
                for run in runs
                if run.contender == contender.name and here(run) and key(run) in reference
            ]
            if not pairs:
                continue
            own = references[(plains or {}).get(contender.mode, plain)]
            values = _values([pair for pair in pairs if selected(pair[0])], own, contender, costs or {}, seed)
            bound = _first_token(bounds or {}, contender.name, workload, temperature)
            rows.append(
                ResultRow(
                    workload=workload,
                    temperature=temperature,
                    selection=selection,
                    first_token=bound,
                    **values,
                )
            )
    return rows


def _first_token(
    bounds: AcceptanceBounds, contender: str, workload: str, temperature: float | None
) -> AcceptanceBound | None:
    """The sum of the bounds over the workloads and temperatures that a row covers; None if the draft model
    sampled no tokens."""
    parts = [
        bound
        for (name, where, heat), bound in bounds.items()
        if name == contender and workload in ("all", where) and temperature in (None, heat)
    ]
    return reduce(AcceptanceBound.__add__, parts) if parts else None


def _values(
    pairs: Sequence[tuple[Run, Run]],  # (contender's run, plain decoding's run); may be empty
    # runs of plain decoding whose forwards are COMPILED or EAGER as the contender's are
    own: Mapping[Key, Run],
    contender: Contender,
    costs: Costs,
    seed: int,
) -> dict[str, Any]:
    same_mode = [(run, own[key(run)]) for run, _ in pairs if key(run) in own]
    # a method's outputs are compared with plain decoding in the same mode; plain decoding in another mode
    # than the reference's is compared with the reference
    texts = pairs if any(run is plain for run, plain in same_mode) else same_mode
    timed = [pair for pair in pairs if min(run.tokens for run in pair) >= MIN_TOKENS] or pairs
    speeds: dict[int, list[float]] = {}
    plain_speeds: dict[int, list[float]] = {}
    ratios: dict[int, list[float]] = {}
    for (index, *_), together in grouped_by(timed, lambda run: key(run)[:3]).items():
        speed, plain_speed = (rate([pair[side] for pair in together]) for side in (0, 1))
        speeds.setdefault(index, []).append(speed)
        plain_speeds.setdefault(index, []).append(plain_speed)
        ratios.setdefault(index, []).append(speed / plain_speed)
    greedy = [
        difference
        for run, plain in texts
        if run.trial.temperature == 0
        for difference in run.differences(plain)
    ]
    first_differences = [difference for difference in greedy if difference is not None]
    counted = [run.counts for run, _ in pairs]
    complete = bool(counted) and all(counted)
    counts = reduce(Counts.__add__, [each for each in counted if each], Counts()) if complete else None
    efficiency = [
        [decode / ideal]
        for pairs_of_prompt in grouped_by(same_mode, lambda run: (run.trial.index,)).values()
        if (decode := _ratio_of_totals(pairs_of_prompt, lambda run: run.decode_seconds))
        and (ideal := ideal_speedup(pairs_of_prompt, costs, contender.mode))
    ]
    drafts = counts is not None and counts.drafted > 0
    return {
        "contender": contender.name,
        "kind": contender.kind,
        "mode": contender.mode,
        "precision": contender.precision,
        "options": contender.options,
        "prompts": len({prompt.id for run, _ in pairs for prompt in run.trial.cases}),
        "runs": len(pairs),
        "tokens_per_second": median_interval(list(speeds.values()), seed=seed),
        "plain_tokens_per_second": median_interval(list(plain_speeds.values()), seed=seed),
        "speedup": median_interval(list(ratios.values()), seed=seed),
        "speedup_of_totals": _ratio_of_totals(timed, lambda run: run.seconds) or float("nan"),
        "decode_speedup": _ratio_of_totals(same_mode, lambda run: run.decode_seconds),
        "ideal_speedup": ideal_speedup(same_mode, costs, contender.mode),
        "efficiency": median_interval(efficiency, seed=seed) if drafts and efficiency else None,
        "repetition": sum(run.repetition for run, _ in pairs) / len(pairs) if pairs else float("nan"),
        "lossless": all(contender.lossless(run.trial.temperature) for run, _ in pairs),
        "different": len(first_differences) if greedy else None,
        "compared": len(greedy),
        "first_difference": median(first_differences) if first_differences else None,
        "counts": counts,
        "repeat": 1 + max((run.trial.again for run, _ in pairs), default=0),
        "halves": in_halves(pairs),
        "quality": quality_of(pairs, seed=seed),
    }


def grouped_by(
    pairs: Sequence[tuple[Run, Run]], name: Callable[[Run], tuple[Any, ...]]
) -> dict[tuple[Any, ...], list[tuple[Run, Run]]]:
    """Group pairs (contender's run, plain decoding's run) by the value of `name` for the contender's run."""
    groups: dict[tuple[Any, ...], list[tuple[Run, Run]]] = {}
    for pair in pairs:
        groups.setdefault(name(pair[0]), []).append(pair)
    return groups


def _ratio_of_totals(
    pairs: Sequence[tuple[Run, Run]], seconds: Callable[[Run], float | None]
) -> float | None:
    timed = [pair for pair in pairs if None not in (seconds(pair[0]), seconds(pair[1]))]
    rates: list[float] = []
    for side in (0, 1):
        total = sum(seconds(pair[side]) or 0.0 for pair in timed)
        if total <= 0:
            return None
        rates.append(sum(pair[side].tokens for pair in timed) / total)
    return rates[0] / rates[1] if rates[1] else None


def headline(
    rows: Sequence[ResultRow], workload: str, temperature: float | None, selection: str = VARIED
) -> list[ResultRow]:
    """The result rows that tables show: those of this workload, temperature and selection of prompts. The
    selection (ALL or VARIED) is fixed before the run, so that it cannot be chosen by its results."""
    return [
        row
        for row in rows
        if (row.workload, row.temperature, row.selection) == (workload, temperature, selection)
    ]
