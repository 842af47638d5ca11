"""The results of a benchmark as JSON and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from outpace.bench.measure.measurement import Measurement
from outpace.bench.measure.run import Run
from outpace.bench.report.summary import SELECTIONS, ResultRow
from outpace.bench.report.tables import notes, tables
from outpace.bench.report.usage import commands
from outpace.cost.best_shape import Choice as TreeChoice
from outpace.tables import markdown

SCHEMA = "outpace-bench/2"


def to_json(of: Measurement, rows: Sequence[ResultRow]) -> dict[str, Any]:
    """All runs and result rows with settings, provenance, the cost of forwards and the recommendation."""
    return {
        "schema": SCHEMA,
        "provenance": dict(of.provenance),
        "settings": {**of.settings, **of.workload(), "seed": of.seed},
        "complete": of.complete,
        "runs_made": len(of.runs),
        "runs_planned": of.total,
        "left_out": list(of.left_out),
        "failed": dict(of.failed),
        "load_seconds": dict(of.load_seconds),
        "compile_seconds": dict(of.compile_seconds),
        "warm_up_seconds": dict(of.warm_up_seconds),
        "milliseconds_by_nodes": {of.called(*name): curve.to_json() for name, curve in of.costs.items()},
        "milliseconds_after_another_size": {
            of.called(*name): {str(size): 1000 * median(seconds) for size, seconds in each.changed.items()}
            for name, each in of.timings.items()
        },
        "peer_settings": {name: each.to_json() for name, each in of.peer_settings.items()},
        "notes": notes(rows),
        "selections": SELECTIONS,
        "results": [{**row.to_json(), "headline": row.selection == of.selection} for row in rows],
        "best_trees": {name: tree_to_json(tree) for name, tree in of.trees(rows).items()},
        "best_chains": {name: tree_to_json(tree) for name, tree in of.chains(rows).items()},
        "compiled_over_eager": gain.to_json() if (gain := of.compiling(rows)) else None,
        "recommendation": of.advice(rows),
        "runs": [run_to_json(run) for run in of.runs],
    }


def to_markdown(of: Measurement, rows: Sequence[ResultRow]) -> str:
    """A Markdown page: provenance, result tables, tables about the models, notes on the columns, and the
    recommendation."""
    known = of.provenance
    versions = ", ".join(f"{name} {version}" for name, version in known["versions"].items() if version)
    lines = [
        f"# Methods side by side: {of.settings.get('target', 'target')}",
        "",
        f"Device: {known['device']}, {known['threads']} threads. Versions: {versions}.",
        f"Commit: {known['commit'] or '-'}.",
        f"Date: {known['date']}. Command: `{' '.join(map(str, known['argv']))}`.",
        *([] if of.complete else ["", f"Interrupted: {len(of.runs)} of {of.total} runs were made."]),
    ]
    lines += [line for name, why in of.failed.items() for line in ("", f"{name} was left out: {why}")]
    pages = [markdown(table, 2) for table in (*tables(rows, of.selection), *of.models())]
    used = ["\n".join(["```bash", *found, "```"])] if (found := commands(of, rows)) else []
    return "\n\n".join(["\n".join(lines), *pages, notes(rows), *of.answers(rows), *used]) + "\n"


def tree_to_json(tree: TreeChoice) -> dict[str, Any]:
    """A draft tree as parent indices, with its expected acceptance length and its expected speedup over plain
    decoding in the same mode."""
    return {"parents": tree.shape.parents, "mean_acceptance_length": tree.length, "speedup": tree.speedup}


def run_to_json(run: Run) -> dict[str, Any]:
    """One run without its output: prompt ids, temperature, round, seconds and token counts."""
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
        **({"quality": [asdict(text) for text in run.quality]} if run.quality else {}),
    }
