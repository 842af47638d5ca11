"""Acceptance length of every exact verification rule on the same drafts, and its upper bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.verification_rules.comparison import RULES, Recorded, Recorder
from outpace.api.model import Model, load
from outpace.api.opener import ModelOpener
from outpace.api.settings import end_tokens
from outpace.bench.measure import provenance
from outpace.bench.measure.means import Mean, mean_interval
from outpace.bench.measure.workload import encode, load_items
from outpace.bench.report.json_file import write_json
from outpace.cli.failures import report_failures
from outpace.console import progress
from outpace.core.sampling_params import SamplingParams
from outpace.models.names import usual_draft
from outpace.recipes import split_outside
from outpace.tables import Table, print_tables

Option = typer.Option
BASE = "rejection"  # on drafts drawn without replacement: the baseline of the differences
COLUMNS = (
    "draft",
    "rule",
    "acceptance length (95 %)",
    "difference to the first row (95 %)",
    "bound",
    "bound - length (95 %)",
    "any accepted",
    "bound",
    "bound - any (95 %)",
)
ROUNDING = 1e-9
NOTE = (
    "Acceptance length counts the bonus token. For each tree it is the exact expectation over the rule's own "
    "random choices. Intervals are bootstrap intervals over prompts and their trees; differences are taken "
    "tree by tree. A bound holds for all exact rules of the same kind: those that decide node by node, or "
    "those that weigh whole paths; where the draft repeats tokens it is loose. Any accepted: the probability "
    "that at least one draft token is accepted, with its upper bound, the best coupling of draft and target."
)


@report_failures
def acceptance(
    target: Annotated[str, Option(help="The model: zoo:NAME or a folder.")] = "zoo:target",
    draft: Annotated[str | None, Option(help="The draft model.")] = None,
    widths: Annotated[
        str, Option(help="Children of every node at each depth; 1,1,1,1 is a chain.")
    ] = "4,2,2",
    num_trees: Annotated[int, Option(min=1, help="Number of contexts at which trees are drafted.")] = 200,
    temperature: Annotated[float, Option(min=0, help="Temperature of the target and the draft.")] = 1.0,
    prompts: Annotated[str, Option(help="Prompt sets or files.")] = "code",
    num_prompts: Annotated[
        int, Option(min=1, help="Maximum number of prompts of each set, spread evenly over it.")
    ] = 10,
    dtype: Annotated[str, Option(help="dtype of the models.")] = "auto",
    compile_: Annotated[bool, Option("--compile", help="Compile the models.")] = False,
    threads: Annotated[int | None, Option(min=1, help="CPU threads.")] = None,
    seed: Annotated[int, Option(help="Seed of the texts and the drafts.")] = 0,
    json: Annotated[Path | None, Option(help="File to write.")] = None,
) -> None:
    """Compare the acceptance lengths of the exact verification rules on the same draft trees."""
    shape = _widths(widths)
    with provenance.threads(threads):
        model = load(target, dtype=dtype, compile=compile_)
        found, about = record(model, target, draft, shape, num_trees, temperature, prompts, num_prompts, seed)
        known = {**provenance.provenance(), "dtype": about["dtype"]}
    results, facts = summarise(found, len(shape), seed), orderings(found)
    title = f"{about['draft']} drafts for {target}: widths {widths}, temperature {temperature:g}, "
    proven = tuple(
        (each["what"], f"{each['least']:+.1e}", "holds" if each["holds"] else "BROKEN") for each in facts
    )
    print_tables(
        [
            Table(f"{title}{len(found)} trees of each kind", COLUMNS, tuple(map(_cells, results)), NOTE),
            Table("Proven at one node, over all drafts", ("inequality", "least margin", ""), proven),
        ]
    )
    if json:
        write_json(json, report(found, results, about, known))
    if not all(each["holds"] for each in facts):
        raise typer.Exit(1)


def _widths(text: str) -> tuple[int, ...]:
    try:
        widths = tuple(int(piece) for piece in text.split(","))
    except ValueError as error:
        raise ValueError(f"--widths takes whole numbers separated by commas, not {text!r}") from error
    if min(widths) < 1:
        raise ValueError("a width is at least 1")
    return widths


def record(
    model: Model,
    target: str,
    draft: str | None,
    widths: tuple[int, ...],
    num_trees: int,
    temperature: float,
    prompts: str,
    num_prompts: int,
    seed: int,
) -> tuple[list[Recorded], dict[str, Any]]:
    """Generate text with the target and draft trees at positions of it.

    Returns the recorded trees, with acceptance and bounds of each, and the settings as JSON values. Raises
    ValueError without a draft, for one with another tokenizer, or if no prompt is short enough.
    """
    items = [item for source in split_outside(prompts, ",") for item in load_items(source, num_prompts)]
    name = usual_draft(target) if draft is None else draft
    if name is None:
        raise ValueError("give --draft: a small model with the target's tokens")
    drafted = ModelOpener(model).draft(name)
    with progress(num_trees) as advance:
        recorder = Recorder(drafted, widths, after=lambda: advance("recording", 1))
        needed = recorder.tokens(-(-num_trees // len(items)))
        max_length = min(each for each in (model.max_length, drafted.max_length, 1 << 30) if each is not None)
        texts = [
            tokens
            for item in items
            if 0 < len(tokens := encode(model.tokenizer, item)) <= max_length - needed
        ]
        if not texts:
            raise ValueError(f"every prompt is too long for {needed} new tokens: lower --num-trees")
        stop = end_tokens(model.defaults, model.tokenizer)
        row_params = [
            SamplingParams(temperature=temperature, stop=stop, seed=seed + index)
            for index in range(len(texts))
        ]
        recorder.write(model.target, texts, row_params, num_trees)
    about = {
        "target": target,
        "draft": name,
        "widths": widths,
        "temperature": temperature,
        "prompts": prompts,
        "num_prompts": len(texts),
        "num_trees": len(recorder.found),
        "seed": seed,
        "dtype": str(next(model.target.model.parameters()).dtype).removeprefix("torch."),
    }
    return recorder.found, about


def summarise(found: Sequence[Recorded], depth: int, seed: int = 0) -> list[dict[str, Any]]:
    """One row per way of drafting and rule: means over trees with bootstrap intervals over prompts.

    "length" is the acceptance length, bonus token included; `depth`: depth of the trees.
    """

    def mean(value: Callable[[Recorded], float]) -> Mean:
        groups: dict[int, list[float]] = {}
        for each in found:
            groups.setdefault(each.prompt, []).append(value(each))
        return mean_interval(list(groups.values()), seed=seed)

    whole = {rule.name for rule in RULES if rule.whole_paths}
    first = next(iter(found[0].kept))
    rows: list[dict[str, Any]] = []
    for drafting in found[0].kept:
        for rule in found[0].kept[drafting]:
            kind = "any_rule" if rule in whole else "node_by_node"

            def kept(each: Recorded, d: str = drafting, r: str = rule) -> float:
                return each.kept[d][r].depth

            def bound(each: Recorded, d: str = drafting, k: str = kind) -> float:
                return getattr(each.bounds[d], k)

            limit = mean(lambda each, f=bound: 1 + f(each))
            rows.append(
                {
                    "drafting": drafting,
                    "rule": rule,
                    "length": mean(lambda each, f=kept: 1 + f(each)),
                    "difference": mean(lambda each, f=kept: f(each) - each.kept[first][BASE].depth),
                    "bound_kind": kind,
                    # a path has at most `depth` draft tokens; the sampled mean of the bound may exceed that
                    "bound": min(limit.mean, 1.0 + depth),
                    "to_bound": mean(lambda each, f=kept, b=bound: b(each) - f(each)),
                    "any": mean(lambda each, d=drafting, r=rule: each.kept[d][r].any),
                    "any_bound": mean(lambda each, d=drafting: each.bounds[d].first_token),
                    "any_to_bound": mean(
                        lambda each, d=drafting, r=rule: each.bounds[d].first_token - each.kept[d][r].any
                    ),
                }
            )
    return rows


def report(
    found: Sequence[Recorded], rows: Sequence[dict[str, Any]], about: dict[str, Any], known: dict[str, Any]
) -> dict[str, Any]:
    """The JSON report: provenance, settings, summary rows, ordering checks and all recorded trees."""

    def plain(value: Any) -> Any:
        return value.to_json() if hasattr(value, "to_json") else value

    return {
        "schema": "outpace-verifiers/1",
        "provenance": known,
        "settings": about,
        "notes": NOTE,
        "results": [{name: plain(value) for name, value in row.items()} for row in rows],
        "orderings": orderings(found),
        "trees": [asdict(each) for each in found],
    }


def orderings(found: Sequence[Recorded]) -> list[dict[str, Any]]:
    """For each proven inequality between rules at one node: its least margin over the roots of all trees.

    It holds if the margin is at least -ROUNDING.
    """
    least = {what: min(each.margins[what] for each in found) for what in found[0].margins}
    return [{"what": what, "least": value, "holds": value >= -ROUNDING} for what, value in least.items()]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    length = row["length"]
    return (
        row["drafting"],
        row["rule"],
        f"{length.mean:.3f} ({length.low:.3f}-{length.high:.3f})",
        _difference(row["difference"]),
        f"{row['bound']:.3f}",
        _difference(row["to_bound"]),
        f"{row['any'].mean:.3f}",
        f"{row['any_bound'].mean:.3f}",
        _difference(row["any_to_bound"]),
    )


def _difference(mean: Mean) -> str:
    return f"{mean.mean:+.3f} ({mean.low:+.3f} to {mean.high:+.3f})"
