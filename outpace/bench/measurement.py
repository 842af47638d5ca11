"""A whole measurement: contenders, cases and settings in; runs, tables, JSON and one recommendation out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from outpace.bench.best import Best, look_at_all
from outpace.bench.contender import Contender
from outpace.bench.cost import CostCurve, measure_costs
from outpace.bench.recommend import Choice, Recommendation, recommend
from outpace.bench.run import Case, Run, batches, interleave, reason, trials, warm_up
from outpace.bench.summary import SELECTIONS, Row, headline, summarise
from outpace.bench.table import NOTE, markdown, tables
from outpace.bench.worker import Cannot
from outpace.controllers.shape import Choice as TreeChoice
from outpace.controllers.shape import best_shape
from outpace.core.context import Sampling
from outpace.core.contracts import Target

SCHEMA = "outpace-bench/1"


class Enough(Exception):
    """Raised by `after` to stop early and keep what was made."""


@dataclass
class Measurement:
    """Settings and what was measured so far; complete or not, it can always be reported."""

    contenders: Sequence[Contender]  # the first is plain decoding
    cases: Sequence[Case]
    sampling: Sampling  # temperature and seed are set per run
    temperatures: Sequence[float]
    rounds: int
    batch: int
    seed: int
    choices: Mapping[str, Choice]
    provenance: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    load_seconds: Mapping[str, float] = field(default_factory=dict)
    left_out: Sequence[str] = ()  # prompts too long for the target
    costs: dict[str, CostCurve] = field(default_factory=dict)
    bounds: dict[tuple[str, str, float], Best] = field(default_factory=dict)  # (contender, workload, temperature)
    runs: list[Run] = field(default_factory=list)
    interrupted: bool = False
    failed: dict[str, str] = field(default_factory=dict)  # contender, maybe at a temperature -> why it is left out
    unable: set[tuple[str, float]] = field(default_factory=set)  # (contender, temperature) that is not asked for
    error: Exception | None = None  # what ended the measurement

    def __post_init__(self) -> None:
        self.groups = batches(self.cases, self.batch)
        self.planned = list(trials(self.groups, self.temperatures, self.rounds))

    @property
    def total(self) -> int:
        """Runs planned."""
        return sum(
            (each.name, trial.temperature) not in self.unable for trial in self.planned for each in self.contenders
        )

    @property
    def complete(self) -> bool:
        return sum(run.contender not in self.failed for run in self.runs) == self.total

    def measure(
        self,
        targets: Mapping[str, Target] | None = None,  # "target" and "draft": whose forwards are put on a cost curve
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
                length = round(median(len(case.tokens) for case in self.cases)) + self.sampling.max_tokens // 2
                self.costs = measure_costs(targets, length=max(2, length), rows=min(self.batch, len(self.cases)))
            stage("warming up")
            self.contenders = [each for each in self.contenders if self._works(each)]
            stage("bounding acceptance")
            self.bounds = look_at_all(self.contenders, self.groups, self.sampling, self.temperatures, seed=self.seed)
            stage("measuring")
            told: Any = {"after": made, "lost": lost}
            interleave(self.contenders, self.planned, self.sampling, seed=self.seed, unable=self.unable, **told)
        except (KeyboardInterrupt, Enough):
            self.interrupted = True
        except Exception as error:  # reported after what was measured is safe
            self.error = error

    def _works(self, contender: Contender) -> bool:
        """Warm it up; one that fails here is left out, so that the others are still measured."""
        name, cannot = contender.name, dict[float, str]()
        try:
            for temperature in self.temperatures:
                try:
                    warm_up(contender, self.planned[0], self.sampling, [temperature])
                except Cannot as error:
                    cannot[temperature] = str(error)
        except Exception as error:
            if contender is self.contenders[0]:
                raise  # nothing can be compared without plain decoding
            self.failed[name] = reason(error)
        if len(cannot) == len(self.temperatures):
            self.failed[name] = cannot[self.temperatures[0]]
        elif name not in self.failed:
            self.failed |= {f"{name} at temperature {heat:g}": why for heat, why in cannot.items()}
            self.unable |= {(name, heat) for heat in cannot}
        return name not in self.failed

    def rows(self) -> list[Row]:
        """Everything there is to say."""
        curves = {"target_cost": self.costs.get("target"), "draft_cost": self.costs.get("draft")}
        return summarise(
            self.runs, self.contenders, self.contenders[0].name, bounds=self.bounds, seed=self.seed, **curves
        )

    def decisive(self, rows: Sequence[Row]) -> list[Row]:
        """Those of all workloads and temperatures together: what a recommendation is made of."""
        workload = "all" if any(row.workload == "all" for row in rows) else next((r.workload for r in rows), "all")
        pooled = (
            None if len({row.temperature for row in rows} - {None}) > 1 else next((r.temperature for r in rows), None)
        )
        return headline(rows, workload, pooled)

    def recommendation(self, rows: Sequence[Row]) -> Recommendation:
        """One answer."""
        return recommend(self.decisive(rows), self.choices)

    def trees(self, rows: Sequence[Row]) -> dict[str, TreeChoice]:
        """Per method with a draft model, the tree that its acceptance and the measured forwards make the fastest."""
        target, draft = self.costs.get("target"), self.costs.get("draft")
        if target is None or draft is None:
            return {}
        drafting = [row for row in self.decisive(rows) if row.counts and row.counts.forwards]
        nodes = target.sizes[-1] - 1  # beyond what was measured a curve is a guess
        return {
            row.contender: best_shape(row.counts.rank_rates(), target, draft(1), nodes=nodes)
            for row in drafting
            if row.counts
        }

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
        }

    def to_json(self, rows: Sequence[Row]) -> dict[str, Any]:
        shown = {id(r) for row in rows for r in headline(rows, row.workload, row.temperature)}
        return {
            "schema": SCHEMA,
            "provenance": dict(self.provenance),
            "settings": {**self.settings, **self.workload(), "seed": self.seed},
            "complete": self.complete,
            "runs_made": len(self.runs),
            "runs_planned": self.total,
            "left_out": list(self.left_out),
            "failed": dict(self.failed),
            "load_seconds": dict(self.load_seconds),
            "milliseconds_by_nodes": {name: curve.to_json() for name, curve in self.costs.items()},
            "notes": NOTE,
            "selections": SELECTIONS,
            "results": [{**row.to_json(), "headline": id(row) in shown} for row in rows],
            "best_trees": {
                name: {"parents": tree.shape.parents, "mean_acceptance_length": tree.length, "speedup": tree.speedup}
                for name, tree in self.trees(rows).items()
            },
            "recommendation": self.advice(rows),
            "runs": [run_to_json(run) for run in self.runs],
        }

    def to_markdown(self, rows: Sequence[Row]) -> str:
        known = self.provenance
        versions = ", ".join(f"{name} {version}" for name, version in known["versions"].items() if version)
        lines = [
            "# Side by side",
            "",
            f"Device: {known['device']}, {known['threads']} threads. Versions: {versions}.",
            f"Commit: {known['commit'] or '-'}.",
            f"Date: {known['date']}. Command: `{' '.join(map(str, known['argv']))}`.",
            *([] if self.complete else ["", f"Interrupted: {len(self.runs)} of {self.total} runs were made."]),
        ]
        lines += [line for name, why in self.failed.items() for line in ("", f"{name} was left out: {why}")]
        pages = [markdown(table, 2) for table in tables(rows)]
        return (
            "\n\n".join(["\n".join(lines), *pages, NOTE, f"Recommendation: {self.recommendation(rows).reason}"]) + "\n"
        )


def run_to_json(run: Run) -> dict[str, Any]:
    """One run, without its text."""
    counts = run.counts
    counted = {name: getattr(counts, name) for name in ("steps", "accepted", "drafted")} if counts else {}
    return {
        "method": run.contender,
        "prompts": [case.id for case in run.trial.cases],
        "workload": run.trial.workload,
        "temperature": run.trial.temperature,
        "round": run.trial.round,
        "tokens": run.tokens,
        "seconds": run.seconds,
        "prompt_seconds": run.prompt_seconds,
        "repetition": run.repetition,
        **counted,
    }
