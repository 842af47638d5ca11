"""A plan as tables, JSON and an HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from outpace.cost.step_time import Choice
from outpace.page.line_chart import line_chart
from outpace.page.templates import render
from outpace.plan.plan import Plan, drafts_in_words
from outpace.plan.prediction import Prediction
from outpace.tables import Table

SCHEMA = "outpace-plan/1"
GIGA = 1e9
COLUMNS = (
    "batch",
    "method",
    "best draft",
    "tokens per step",
    "ms per step",
    "plain ms per step",
    "tokens/s",
    "speedup",
    "acceptance needed",
)
NOTE = (
    "Speedup: predicted, over plain decoding of the same batch. Tokens per step are of one row and count the "
    "bonus token, tokens/s of all rows. Acceptance needed: share of draft tokens that must be accepted, each "
    "after those before it, for a speedup of 1; - where drafts are not always of one length."
)


def tables(plan: Plan) -> list[Table]:
    """The predictions, where speculation stops paying, and the memory."""
    rows = tuple(map(cells, plan.predictions))
    return [
        Table(f"Predictions for {plan.target_name}", COLUMNS, rows, NOTE),
        Table("Where it stops paying", ("method", "pays up to batch"), tuple(_pays(plan)), ""),
        memory_table(plan),
    ]


def cells(of: Prediction) -> tuple[str, ...]:
    """A row with the columns COLUMNS."""
    rate = of.needed.rate if of.needed else None
    return (
        str(of.rows),
        of.method,
        drafts_in_words(of).removeprefix("drafts of ").replace("trees", "tree"),
        f"{of.best.tokens:.2f}",
        f"{1000 * of.best.seconds:.2f}",
        f"{1000 * of.plain_seconds:.2f}",
        f"{of.tokens_per_second:.1f}",
        f"{of.speedup:.2f}",
        "-" if of.needed is None else "cannot" if rate is None else f"{rate:.2f}",
    )


def _pays(plan: Plan) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for method in plan.methods:
        until = plan.pays_until(method.name)
        found.append(
            (
                method.name,
                "never" if until is None else f"{until} or more" if until >= plan.largest else str(until),
            )
        )
    return found


def memory_table(plan: Plan) -> Table:
    """Gigabytes by batch size."""
    memory = plan.memory
    rows = tuple(
        (
            str(size),
            f"{memory.target / GIGA:.3f}",
            f"{size * memory.row / GIGA:.3f}",
            f"{memory.drafters / GIGA:.3f}",
            f"{size * memory.drafters_row / GIGA:.3f}",
            f"{memory.total(size) / GIGA:.3f}",
        )
        for size in plan.batches
    )
    columns = ("batch", "weights", "KV cache", "drafters' weights", "drafters' KV cache", "together")
    return Table(f"Memory in GB at {plan.context} tokens of context", columns, rows, plan.fits)


def to_json(plan: Plan) -> dict[str, Any]:
    """All predictions, also those of other draft lengths, with what they are based on."""
    memory = plan.memory
    return {
        "schema": SCHEMA,
        "provenance": dict(plan.provenance),
        "settings": dict(plan.settings),
        "recommendation": plan.recommendation,
        "pays_up_to_batch": {
            "any": plan.pays_until(),
            **{method.name: plan.pays_until(method.name) for method in plan.methods},
        },
        "largest_batch_looked_at": plan.largest,
        "results": [prediction_to_json(each) for each in plan.predictions],
        "acceptance": {
            method.name: {
                "reached": list(method.drafts.reached),
                "accepted": list(method.drafts.accepted),
                "tree_nodes": method.drafts.tree_nodes,
                "ranks": list(method.ranks),
            }
            for method in plan.methods
        },
        "memory": {
            "weights_bytes": memory.target,
            "drafters_weights_bytes": memory.drafters,
            "kv_cache_bytes_per_row": memory.row,
            "drafters_kv_cache_bytes_per_row": memory.drafters_row,
            "device_bytes": memory.device,
            "rows_that_fit": memory.most_rows(),
        },
        "measured": list(plan.measured),
        "assumed": list(plan.assumed),
    }


def prediction_to_json(of: Prediction) -> dict[str, Any]:
    """One prediction."""
    return {
        "method": of.method,
        "batch": of.rows,
        "speedup": of.speedup,
        "best": choice_to_json(of.best),
        "tree_parents": list(of.shape.parents) if of.shape else None,
        "plain_seconds": of.plain_seconds,
        "tokens_per_second": of.tokens_per_second,
        "acceptance_needed": of.needed.rate if of.needed else None,
        "by_length": [choice_to_json(each) for each in of.by_length],
    }


def choice_to_json(of: Choice) -> Mapping[str, Any]:
    return {"length": of.length, "tokens_per_step": of.tokens, "seconds_per_step": of.seconds}


def commands(plan: Plan) -> list[str]:
    """The command that generates with the recommended method at the smallest batch size, if it pays; else
    none."""
    best = plan.best(plan.batches[0])
    words = plan.commands.get(best.method)
    if words is None or best.speedup <= 1 or best.shape is not None:
        return []
    return [shlex.join([word.replace("{length}", str(best.best.length)) for word in words])]


def to_html(plan: Plan) -> str:
    """The HTML page as text; it loads no other files."""
    sizes = plan.batches
    chart = line_chart(
        {
            method.name: {rows: plan.predict(method.name, rows).speedup for rows in sizes}
            for method in plan.methods
        }
    )
    decision, pays, memory = tables(plan)
    source = plan.provenance
    advice = plan.recommendation
    return render(
        "outpace.plan",
        "plan.html",
        title=f"Plan for {plan.target_name}: predicted, not measured",
        advice=f"Recommendation: {advice}",
        further=[plan.fits] if plan.fits else [],
        commands=commands(plan),
        chart=chart,
        shown=[_short(plan, pays)],
        folded=[decision, memory, *_by_length(plan)],
        measured=plan.measured,
        assumed=plan.assumed,
        facts=[
            ("Machine of this plan", f"{source['device']}, {source['threads']} threads"),
            ("Commit", str(source["commit"] or "-")),
            ("Date", str(source["date"])),
            ("Command", " ".join(map(str, source["argv"]))),
        ],
    )


def _short(plan: Plan, pays: Table) -> Table:
    """The speedups with the best drafts, and where they end: a row for each batch size."""
    rows = [
        (str(size), *(_speedup(plan.predict(method.name, size)) for method in plan.methods))
        for size in plan.batches
    ]
    end = ("pays up to", *(until for _, until in pays.rows))
    columns = ("batch", *(method.name for method in plan.methods))
    note = "In brackets: draft tokens of a step, of the best draft."
    return Table("Predicted speedup", columns, (*rows, end), note)


def _speedup(of: Prediction) -> str:
    return f"{of.speedup:.2f} ({_short_drafts(of)})"


def _line(plan: Plan, method: str) -> Sequence[Prediction]:
    return [plan.predict(method, size) for size in plan.batches]


def _short_drafts(of: Prediction) -> str:
    return str(of.best.length) if of.tree_nodes is None else f"tree of {of.tree_nodes:.0f}"


def _by_length(plan: Plan) -> list[Table]:
    """Speedups of all draft lengths, for methods of which there are several."""
    found: list[Table] = []
    for method in plan.methods:
        line = _line(plan, method.name)
        lengths = [each.length for each in line[0].by_length]
        if len(lengths) > 1:
            rows = tuple(
                (
                    str(length),
                    *(f"{each.by_length[at].speed * each.plain_seconds:.2f}" for each in line),
                )
                for at, length in enumerate(lengths)
            )
            columns = ("draft tokens", *(f"batch {size}" for size in plan.batches))
            found.append(Table(f"Speedup of {method.name} by draft length", columns, rows, ""))
    return found
