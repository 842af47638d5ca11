"""A benchmark from settings to results: contenders, prompts and runs, and the result rows and recommendation
derived from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from outpace.bench.measure.acceptance_bound import AcceptanceBound, acceptance_bounds
from outpace.bench.measure.best_setting import BestSetting
from outpace.bench.measure.bootstrap import Interval
from outpace.bench.measure.contender import EAGER, Contender, PeerRefused
from outpace.bench.measure.disturbance import disturbance
from outpace.bench.measure.forward_cost import Timings, measure_forwards
from outpace.bench.measure.ideal import DRAFT, TARGET
from outpace.bench.measure.quality import measured, with_quality
from outpace.bench.measure.recommend import MethodChoice, Recommendation, nothing, recommend
from outpace.bench.measure.run import EncodedPrompt, Run, batches, interleave, reason, trials, warm_up
from outpace.bench.report.model_tables import forward_costs, preparation
from outpace.bench.report.summary import VARIED, ResultRow, headline, summarise
from outpace.core.contracts import Target
from outpace.core.sampling_params import SamplingParams
from outpace.cost.best_shape import Choice as TreeChoice
from outpace.cost.best_shape import best_shape
from outpace.cost.cost_curve import CostCurve
from outpace.models.threads import load
from outpace.tables import Table


class StopMeasurement(Exception):
    """Raised by the callback `after` to stop early; the runs made so far are kept."""


@dataclass
class Measurement:
    """The settings and the runs of a benchmark; results can be reported at any time, also if it is
    incomplete."""

    # the first contender of each mode is plain decoding; speedups are over the first of all
    contenders: Sequence[Contender]
    cases: Sequence[EncodedPrompt]
    sampling: SamplingParams  # temperature and seed are set per run
    temperatures: Sequence[float]
    rounds: int
    batch: int
    seed: int
    choices: Mapping[str, MethodChoice]
    provenance: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Any = None  # the target's, for sample texts
    repeat: int = 1  # how often every prompt is decoded in a round
    # contender whose option takes several values -> its name without the option, and option=value
    curves: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    selection: str = VARIED  # selection of prompts for tables and recommendation, stated before the run
    load_seconds: Mapping[str, float] = field(default_factory=dict)
    compile_seconds: Mapping[str, float] = field(default_factory=dict)
    warm_up_seconds: dict[str, float] = field(default_factory=dict)  # contender -> seconds
    left_out: Sequence[str] = ()  # ids of prompts too long for the target
    timings: dict[tuple[str, str], Timings] = field(default_factory=dict)  # (TARGET or DRAFT, mode) -> times
    # (contender, workload, temperature) -> acceptance and bound of the first draft token
    bounds: dict[tuple[str, str, float], AcceptanceBound] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)  # of the machine, after each run
    interrupted: bool = False
    failed: dict[str, str] = field(default_factory=dict)  # contender (and temperature) -> reason
    unsupported: set[tuple[str, float]] = field(default_factory=set)  # (contender, temperature)
    error: Exception | None = None  # the exception that ended the measurement

    def __post_init__(self) -> None:
        self.groups = batches(self.cases, self.batch)
        self.planned = list(trials(self.groups, self.temperatures, self.rounds, self.repeat))
        self.plains: dict[str, str] = {}
        for each in self.contenders:
            self.plains.setdefault(each.mode, each.name)
        self.plains.pop("", None)  # peers do not report a mode

    @property
    def total(self) -> int:
        """Number of planned runs, without unsupported pairs of contender and temperature."""
        return sum(
            (each.name, trial.temperature) not in self.unsupported
            for trial in self.planned
            for each in self.contenders
        )

    @property
    def complete(self) -> bool:
        return sum(run.contender not in self.failed for run in self.runs) == self.total

    def measure(
        self,
        # (TARGET or DRAFT, mode) -> the model whose forwards are timed
        targets: Mapping[tuple[str, str], Target] | None = None,
        *,
        after: Callable[[Run], None] = lambda run: None,
        stage: Callable[[str], None] = lambda what: None,
    ) -> None:
        """Time the forwards, warm up, bound the acceptance, then make all runs, contenders interleaved. Then,
        if a contender does not promise the target's distribution, measure the quality of its texts.

        An interruption or error is stored in `interrupted` or `error`; the runs so far are kept.
        """

        def made(run: Run) -> None:
            self.runs.append(run)
            if (processes := load()) is not None:
                self.loads.append(processes)
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
            self.bounds = acceptance_bounds(
                self.contenders, self.groups, self.sampling, self.temperatures, seed=self.seed
            )
            stage("measuring")
            interleave(
                self.contenders,
                self.planned,
                self.sampling,
                seed=self.seed,
                unsupported=self.unsupported,
                after=made,
                lost=lost,
            )
            target = (targets or {}).get((TARGET, self.contenders[0].mode))
            if target is not None and (wanted := measured(self.contenders, self.temperatures)):
                stage("measuring quality")
                # the answers in texts that go on behind their end are not looked for
                tokenizer = None if self.settings.get("ignore_eos") else self.tokenizer
                self.runs = list(
                    with_quality(self.runs, wanted, target, self.sampling, tokenizer, seed=self.seed)
                )
        except (KeyboardInterrupt, StopMeasurement):
            self.interrupted = True
        except Exception as error:  # the caller raises it after the runs have been written
            self.error = error

    def _works(self, contender: Contender) -> bool:
        """Warm up a contender; returns whether it can run, and records the reason in `failed` if not. An
        error of plain decoding is raised."""
        name, cannot, began = contender.name, dict[float, str](), perf_counter()
        try:
            if isinstance(contender, BestSetting):
                cannot |= contender.search(self.planned, self.sampling, self.temperatures, self.seed)
            for temperature in (heat for heat in self.temperatures if heat not in cannot):
                try:
                    warm_up(contender, self.planned[0], self.sampling, [temperature])
                except PeerRefused as error:
                    cannot[temperature] = str(error)
        except Exception as error:
            if name == self.contenders[0].name:
                raise  # nothing can be measured: every speedup is over plain decoding
            self.failed[name] = reason(error)
        self.warm_up_seconds[name] = perf_counter() - began
        if len(cannot) == len(self.temperatures):
            self.failed[name] = cannot[self.temperatures[0]]
        elif name not in self.failed:
            self.failed |= {f"{name} at temperature {heat:g}": why for heat, why in cannot.items()}
            self.unsupported |= {(name, heat) for heat in cannot}
        return name not in self.failed

    @property
    def costs(self) -> dict[tuple[str, str], CostCurve]:
        """(TARGET or DRAFT, mode) -> cost curve of the model's forwards."""
        return {name: each.curve for name, each in self.timings.items()}

    def called(self, kind: str, mode: str) -> str:
        """A model's name in tables and files; the mode is added unless it is the first contender's."""
        return kind if mode == self.contenders[0].mode else f"{kind} ({mode})"

    def rows(self) -> list[ResultRow]:
        """The result rows of the runs so far."""
        return summarise(
            self.runs,
            self.contenders,
            self.contenders[0].name,
            plains=self.plains,
            costs=self.costs,
            bounds=self.bounds,
            seed=self.seed,
        )

    def decisive(self, rows: Sequence[ResultRow]) -> list[ResultRow]:
        """The result rows that the recommendation is based on: workloads and temperatures pooled, over the
        prompts of `self.selection` (ALL or VARIED)."""
        workload = (
            "all" if any(row.workload == "all" for row in rows) else next((r.workload for r in rows), "all")
        )
        pooled = (
            None
            if len({row.temperature for row in rows} - {None}) > 1
            else next((r.temperature for r in rows), None)
        )
        return headline(rows, workload, pooled, self.selection)

    def recommendation(self, rows: Sequence[ResultRow]) -> Recommendation:
        """The method to use for these prompts, if enough was measured, and undisturbed, to name one."""
        found = recommend(self.decisive(rows), self.choices)
        return found if found.method is None or self.disturbance is None else nothing(self.disturbance)

    @property
    def disturbance(self) -> str | None:
        """Why no speed of this measurement can be relied on; None without a sign of it."""
        plain = [run for run in self.runs if run.contender == self.contenders[0].name]
        threads = int(self.provenance.get("threads", 1))
        return disturbance(self.loads, threads, self.timings.values(), plain)

    def answers(self, rows: Sequence[ResultRow]) -> list[str]:
        """Conclusions, one sentence each: whose distribution the outputs have if weights or KV entries have
        few bits, the gain of compiling, the peers' best settings, the recommendation."""
        changes = {"weights": "weights compressed", "kv_cache": "keys and values rounded"}
        changed = " and its ".join(
            f"{what} to {self.settings[name]}" for name, what in changes.items() if self.settings.get(name)
        )
        gain = self.compiling(rows)
        compiling = gain and (
            f"Compiled forwards: plain decoding is {gain.median:.2f} times as fast as with the models as "
            "they are "
            f"(95 % interval {gain.low:.2f} to {gain.high:.2f})."
        )
        settings = [
            f"Best settings of {name}: "
            + ", ".join(f"{setting} at temperature {heat:g}" for heat, setting in each.chosen.items())
            + "."
            for name, each in self.peer_settings.items()
        ]
        advice = self.recommendation(rows)
        return [
            *([f"The target's distribution is that of its {changed}."] if changed else []),
            *([compiling] if compiling else []),
            *settings,
            f"Recommendation: {advice.reason}"
            if advice.method
            else advice.reason[0].upper() + advice.reason[1:],
        ]

    def trees(self, rows: Sequence[ResultRow]) -> dict[str, TreeChoice]:
        """Contender -> draft tree with the highest expected speedup, given its acceptance rates and the cost
        of forwards."""
        return self._shapes(rows, None)

    def chains(self, rows: Sequence[ResultRow]) -> dict[str, TreeChoice]:
        """Contender with a draft model -> draft length with the highest expected speedup, as a tree with one
        branch."""
        return self._shapes(rows, 1)

    def _shapes(self, rows: Sequence[ResultRow], ranks: int | None) -> dict[str, TreeChoice]:
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
            nodes = target.sizes[-1] - 1  # without the root; larger sizes were not measured
            found[row.contender] = best_shape(rates[:ranks], target, each, nodes=nodes)
        return found

    def compiling(self, rows: Sequence[ResultRow]) -> Interval | None:
        """Speed of plain decoding with compiled forwards over that with eager ones; None unless both were
        measured."""
        eager = next((row for row in self.decisive(rows) if row.contender == self.plains.get(EAGER)), None)
        if eager is None or eager.contender == self.contenders[0].name:
            return None
        return Interval(1 / eager.speedup.median, 1 / eager.speedup.high, 1 / eager.speedup.low)

    @property
    def peer_settings(self) -> dict[str, BestSetting]:
        """Peer name -> contender with the settings that were tried and chosen."""
        return {each.name: each for each in self.contenders if isinstance(each, BestSetting)}

    def models(self) -> list[Table]:
        """Tables of the seconds of loading, compiling and warm-up, and of the milliseconds of a forward."""
        curves = {self.called(*name): curve for name, curve in self.costs.items()}
        ready = preparation(self.load_seconds, self.compile_seconds, self.warm_up_seconds)
        return [*([ready] if ready.rows else []), *([forward_costs(curves)] if curves else [])]

    def advice(self, rows: Sequence[ResultRow]) -> dict[str, Any]:
        """The recommendation as JSON for `--method @FILE`."""
        decisive = self.decisive(rows)
        about = {
            **self.workload(),
            "selection": self.selection,
            "num_prompts_selected": max((row.prompts for row in decisive), default=0),
        }
        return self.recommendation(rows).to_json(about, self.provenance)

    def workload(self) -> dict[str, Any]:
        """The prompts, temperatures, batch size and other settings of the runs, as JSON."""
        return {
            "prompts": list(dict.fromkeys(case.workload for case in self.cases)),
            "num_prompts": len(self.cases),
            "temperatures": list(self.temperatures),
            "max_tokens": self.sampling.max_tokens,
            "batch": self.batch,
            "rounds": self.rounds,
            "repeat": self.repeat,
            "selection": self.selection,
        }
