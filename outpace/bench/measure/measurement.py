"""A whole measurement: contenders, cases and settings in; runs, tables, JSON and one recommendation out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from outpace.analysis.best_shape import Choice as TreeChoice
from outpace.analysis.best_shape import best_shape
from outpace.bench.measure.acceptance_ceiling import Best, look_at_all
from outpace.bench.measure.bootstrap import Interval
from outpace.bench.measure.contender import EAGER, Contender
from outpace.bench.measure.forward_cost import CostCurve, Timings, measure_forwards
from outpace.bench.measure.ideal import DRAFT, TARGET
from outpace.bench.measure.recommend import Choice, Recommendation, recommend
from outpace.bench.measure.run import Case, Run, batches, interleave, reason, trials, warm_up
from outpace.bench.peers.worker import WorkerRefused
from outpace.bench.report.model_tables import forward_costs, preparation
from outpace.bench.report.summary import Row, headline, summarise
from outpace.core.contracts import Target
from outpace.core.sampling_params import SamplingParams
from outpace.tables import Table


class Enough(Exception):
    """Raised by `after` to stop early and keep what was made."""


@dataclass
class Measurement:
    """Settings and what was measured so far; complete or not, it can always be reported."""

    contenders: Sequence[
        Contender
    ]  # the first of each mode is plain decoding, and all are compared with the very first
    cases: Sequence[Case]
    sampling: SamplingParams  # temperature and seed are set per run
    temperatures: Sequence[float]
    rounds: int
    batch: int
    seed: int
    choices: Mapping[str, Choice]
    provenance: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    passes: int = 1  # how often every prompt is asked in a round
    load_seconds: Mapping[str, float] = field(default_factory=dict)
    compile_seconds: Mapping[str, float] = field(default_factory=dict)
    warm_up_seconds: dict[str, float] = field(default_factory=dict)  # by contender
    left_out: Sequence[str] = ()  # prompts too long for the target
    timings: dict[tuple[str, str], Timings] = field(default_factory=dict)  # (TARGET or DRAFT, mode)
    bounds: dict[tuple[str, str, float], Best] = field(
        default_factory=dict
    )  # (contender, workload, temperature)
    runs: list[Run] = field(default_factory=list)
    interrupted: bool = False
    failed: dict[str, str] = field(
        default_factory=dict
    )  # contender, maybe at a temperature -> why it is left out
    unable: set[tuple[str, float]] = field(
        default_factory=set
    )  # (contender, temperature) that is not asked for
    error: Exception | None = None  # what ended the measurement

    def __post_init__(self) -> None:
        self.groups = batches(self.cases, self.batch)
        self.planned = list(trials(self.groups, self.temperatures, self.rounds, self.passes))
        self.plains: dict[str, str] = {}
        for each in self.contenders:
            self.plains.setdefault(each.mode, each.name)
        self.plains.pop("", None)  # peers do not say how they run

    @property
    def total(self) -> int:
        """Runs planned."""
        return sum(
            (each.name, trial.temperature) not in self.unable
            for trial in self.planned
            for each in self.contenders
        )

    @property
    def complete(self) -> bool:
        return sum(run.contender not in self.failed for run in self.runs) == self.total

    def measure(
        self,
        targets: Mapping[tuple[str, str], Target]
        | None = None,  # (TARGET or DRAFT, mode): to put on a cost curve
        *,
        after: Callable[[Run], None] = lambda run: None,
        stage: Callable[[str], None] = lambda what: None,
    ) -> None:
        """Cost curves, warm-up, bounds of acceptance, then all runs in turn.

        Whatever ends it is remembered, and what was made is kept.
        """

        def made(run: Run) -> None:
            self.runs.append(run)
            after(run)

        def lost(name: str, why: str) -> None:
            self.failed[name] = why
            self.contenders = [each for each in self.contenders if each.name != name]

        try:
            if targets:
                stage("measuring forwards")
                length = (
                    round(median(len(case.tokens) for case in self.cases)) + self.sampling.max_tokens // 2
                )
                rows = min(self.batch, len(self.cases))
                self.timings = measure_forwards(targets, length=max(2, length), rows=rows)
            stage("warming up")
            self.contenders = [each for each in self.contenders if self._works(each)]
            stage("bounding acceptance")
            self.bounds = look_at_all(
                self.contenders, self.groups, self.sampling, self.temperatures, seed=self.seed
            )
            stage("measuring")
            told: Any = {"after": made, "lost": lost}
            interleave(
                self.contenders, self.planned, self.sampling, seed=self.seed, unable=self.unable, **told
            )
        except (KeyboardInterrupt, Enough):
            self.interrupted = True
        except Exception as error:  # reported after what was measured is safe
            self.error = error

    def _works(self, contender: Contender) -> bool:
        """Warm it up; one that fails here is left out, so that the others are still measured."""
        name, cannot, began = contender.name, dict[float, str](), perf_counter()
        try:
            for temperature in self.temperatures:
                try:
                    warm_up(contender, self.planned[0], self.sampling, [temperature])
                except WorkerRefused as error:
                    cannot[temperature] = str(error)
        except Exception as error:
            if name == self.contenders[0].name:
                raise  # nothing can be compared without plain decoding
            self.failed[name] = reason(error)
        self.warm_up_seconds[name] = perf_counter() - began
        if len(cannot) == len(self.temperatures):
            self.failed[name] = cannot[self.temperatures[0]]
        elif name not in self.failed:
            self.failed |= {f"{name} at temperature {heat:g}": why for heat, why in cannot.items()}
            self.unable |= {(name, heat) for heat in cannot}
        return name not in self.failed

    @property
    def costs(self) -> dict[tuple[str, str], CostCurve]:
        """A curve for each model in each mode."""
        return {name: each.curve for name, each in self.timings.items()}

    def called(self, kind: str, mode: str) -> str:
        """What tables and files call a model in a mode: the first mode goes without saying."""
        return kind if mode == self.contenders[0].mode else f"{kind} ({mode})"

    def rows(self) -> list[Row]:
        """Everything there is to say."""
        told: Any = {"plains": self.plains, "costs": self.costs, "bounds": self.bounds, "seed": self.seed}
        return summarise(self.runs, self.contenders, self.contenders[0].name, **told)

    def decisive(self, rows: Sequence[Row]) -> list[Row]:
        """Those of all workloads and temperatures together: what a recommendation is made of."""
        workload = (
            "all" if any(row.workload == "all" for row in rows) else next((r.workload for r in rows), "all")
        )
        pooled = (
            None
            if len({row.temperature for row in rows} - {None}) > 1
            else next((r.temperature for r in rows), None)
        )
        return headline(rows, workload, pooled)

    def recommendation(self, rows: Sequence[Row]) -> Recommendation:
        """One answer."""
        return recommend(self.decisive(rows), self.choices)

    def answers(self, rows: Sequence[Row]) -> list[str]:
        """What it comes to, in sentences."""
        gain = self.compiling(rows)
        compiling = gain and (
            f"Compiled forwards: plain decoding is {gain.median:.2f} times as fast as with the models as they are "
            f"(95 % interval {gain.low:.2f} to {gain.high:.2f})."
        )
        return [*([compiling] if compiling else []), f"Recommendation: {self.recommendation(rows).reason}"]

    def trees(self, rows: Sequence[Row]) -> dict[str, TreeChoice]:
        """Per method with a draft model, or a tree filled without one, the tree that its acceptance and forwards in its
        mode make the fastest."""
        return self._shapes(rows, None)

    def chains(self, rows: Sequence[Row]) -> dict[str, TreeChoice]:
        """The same without siblings, of those with a draft model: how long a draft pays."""
        return self._shapes(rows, 1)

    def _shapes(self, rows: Sequence[Row], ranks: int | None) -> dict[str, TreeChoice]:
        found: dict[str, TreeChoice] = {}
        costs = self.costs
        for row in self.decisive(rows):
            target, draft = costs.get((TARGET, row.mode)), costs.get((DRAFT, row.mode))
            if target is None or row.counts is None or not row.counts.drafted:
                continue
            if row.counts.forwards and draft:
                each, rates = draft(1), row.counts.rank_rates()
            elif not row.counts.forwards and ranks is None and "parents" in row.options:
                each, rates = 0.0, row.counts.rank_rates(everywhere=True)
            else:
                continue
            nodes = target.sizes[-1] - 1  # beyond what was measured a curve is a guess
            found[row.contender] = best_shape(rates[:ranks], target, each, nodes=nodes)
        return found

    def compiling(self, rows: Sequence[Row]) -> Interval | None:
        """How many times as fast plain decoding is with compiled forwards; None where they were not compared."""
        eager = next((row for row in self.decisive(rows) if row.contender == self.plains.get(EAGER)), None)
        if eager is None or eager.contender == self.contenders[0].name:
            return None
        return Interval(1 / eager.speedup.median, 1 / eager.speedup.high, 1 / eager.speedup.low)

    def models(self) -> list[Table]:
        """Loading, compiling and warming up; and what a forward costs."""
        curves = {self.called(*name): curve for name, curve in self.costs.items()}
        ready = preparation(self.load_seconds, self.compile_seconds, self.warm_up_seconds)
        return [*([ready] if ready.rows else []), *([forward_costs(curves)] if curves else [])]

    def advice(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The answer as a file for `--method @FILE`."""
        decisive = self.decisive(rows)
        about = {
            **self.workload(),
            "selection": decisive[0].selection if decisive else None,
            "num_prompts_selected": max((row.prompts for row in decisive), default=0),
        }
        return self.recommendation(rows).to_json(about, self.provenance)

    def workload(self) -> dict[str, Any]:
        """What the numbers are about."""
        return {
            "prompts": list(dict.fromkeys(case.workload for case in self.cases)),
            "num_prompts": len(self.cases),
            "temperatures": list(self.temperatures),
            "max_tokens": self.sampling.max_tokens,
            "batch": self.batch,
            "rounds": self.rounds,
            "passes": self.passes,
        }
