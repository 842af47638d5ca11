"""What distillation gives a draft model: `python -m benchmarks.distillation`.

Drafts of the zoo's size are trained on the text of the zoo's target, without the target, from several seeds.
DistillSpec and FastDraft then train each of them further on the target's answers, in as many steps, at the
best of several learning rates. Chains of five from all of them are compared on the built-in prompts, beside
those of `zoo:draft`, which had the target's distribution from its first step on. A run that was stopped goes
on.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import outpace
from benchmarks.head_orderings import (
    TEMPERATURES,
    Length,
    Training,
    measured,
    ordering,
    to_tables,
    write_lengths,
)
from outpace.bench.measure.provenance import threads
from outpace.bench.measure.workload import BUILT_IN, load_items
from outpace.console import progress
from outpace.models.names import resolve
from outpace.tables import print_tables
from zoo_training.build import build
from zoo_training.drafters import TARGET

UNDISTILLED, SHIPPED = "undistilled", "zoo:draft"
MODEL = "draft-undistilled"  # of zoo_training
METHODS = ("distillspec", "fastdraft")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
ORDERINGS = (("distillspec", UNDISTILLED), ("fastdraft", UNDISTILLED), (SHIPPED, UNDISTILLED))


def undistilled(folder: Path, steps: int, seed: int) -> Path:
    """The folder of the draft of a seed that knows no target, in `folder`/seed-N; trained if it does not
    exist, with the target's tokenizer."""
    folder = folder / f"seed-{seed}"
    if (folder / MODEL).is_dir():
        return folder / MODEL
    place = folder / "tokenizer"
    place.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER:
        shutil.copyfile(Path(resolve(TARGET)) / name, place / name)
    return build(MODEL, folder, steps=steps, bfloat16=True, resume=True, seed=seed)


def main(
    json: Annotated[Path, typer.Option(help="File to write.")],
    folder: Annotated[Path, typer.Option(help="Folder of the training runs.")] = Path("out/distillation"),
    draft_steps: Annotated[int, typer.Option(min=1, help="Steps of the draft before distillation.")] = 2689,
    steps: Annotated[int, typer.Option(min=1, help="Steps of distillation.")] = 1000,
    search_steps: Annotated[int, typer.Option(min=1, help="Steps with each learning rate.")] = 200,
    rates: Annotated[str, typer.Option(help="Learning rates.")] = "3e-4,1e-3",
    methods: Annotated[str, typer.Option(help="Of distillspec and fastdraft; empty: neither.")] = ",".join(
        METHODS
    ),
    seeds: Annotated[
        int, typer.Option(min=1, help="Seeds of the drafts, of the order of texts and of answers.")
    ] = 3,
    prompts: Annotated[int, typer.Option(min=3, help="Prompts of each built-in set.")] = 6,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 96,
    changes: Annotated[list[str] | None, typer.Option("--set", help="A setting of every training.")] = None,
    number: Annotated[int, typer.Option("--threads", min=1, help="CPU threads.")] = 1,
) -> None:
    """Train a draft with and without a target and compare acceptance lengths."""
    items = [item for source in BUILT_IN for item in load_items(source, prompts)]
    names = list(filter(None, methods.split(",")))
    if unknown := set(names) - set(METHODS):
        raise typer.BadParameter(f"there is no method {min(unknown)}: use {', '.join(METHODS)}")
    with threads(number), progress(1 + (2 + len(names)) * seeds) as advance:
        drafts: list[Path] = []
        for seed in range(seeds):
            drafts.append(undistilled(folder, draft_steps, seed))
            advance(f"{UNDISTILLED}, seed {seed}", 1)
        training = Training(folder, outpace.load(TARGET, dtype="float32"), tuple(changes or ()))
        if names:
            training.prepare()
        best = {
            method: training.best_rate(method, search_steps, rates.split(","), str(drafts[0]))
            for method in names
        }
        lengths: list[Length] = []

        def measure(name: str, model: str, kept: Path, seed: int) -> list[Length]:
            recipe, drafter = "speculative-sampling", {"draft": model}
            return measured(name, recipe, drafter, kept, seed, training.target, items, max_tokens)

        found = measure(SHIPPED, SHIPPED, folder, 0)
        # one model beside several seeds of the others
        lengths += [replace(each, seed=seed) for each in found for seed in range(seeds)]
        advance(SHIPPED, 1)
        for seed, draft in enumerate(drafts):
            lengths += measure(UNDISTILLED, str(draft), draft.parent, seed)
            advance(f"{UNDISTILLED}, seed {seed}", 1)
        for method in names:
            for seed, draft in enumerate(drafts):
                trained = training.run(method, seed, steps, best[method], str(draft))
                lengths += measure(method, str(trained), trained, seed)
                advance(f"{method}, seed {seed}", 1)
    ratios = [
        ordering(lengths, name, over, temperature)
        for name, over in ORDERINGS
        for temperature in TEMPERATURES
        if name in (*names, SHIPPED)
    ]
    print_tables(to_tables(lengths, ratios))
    settings = {
        "draft_steps": draft_steps,
        "steps": steps,
        "search_steps": search_steps,
        "seeds": seeds,
        "rates": best,
        "changes": changes or [],
        "max_tokens": max_tokens,
    }
    write_lengths(json, "outpace-distillation/1", settings, lengths, ratios, number)


if __name__ == "__main__":
    typer.run(main)
