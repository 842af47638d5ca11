"""Which drafters are accepted more after equal training: `python -m benchmarks.head_orderings`.

Every head, and every draft model that fills masks, learns in as many steps from the same texts, from several
seeds. Of several learning rates the best is taken, found with the first seed in shorter runs. Heads that
begin as another one learn for some steps more, and so does the other. Then they draft for the built-in
prompts, which are none of the training texts. Acceptance lengths are compared prompt by prompt; they do not
depend on how busy the machine is. A run that was stopped goes on. Trained drafters in the folder are used
again: give another folder after a change to training.
"""

from __future__ import annotations

import json as json_files
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from safetensors.torch import load_file, save_file

import outpace
from outpace.bench.measure.bootstrap import Interval, median_interval
from outpace.bench.measure.provenance import commit, provenance, threads
from outpace.bench.measure.workload import BUILT_IN, WorkloadItem, encode, load_items
from outpace.bench.report.json_file import write_json
from outpace.console import progress
from outpace.tables import Table, print_tables
from outpace.training.run import PROVENANCE, train
from zoo_training.drafters import COMMON, PROMPTS, TARGET
from zoo_training.prompts import write_prompts

RATES = "3e-3"  # better than 1e-3 for medusa, hydra, eagle, hass and eagle3; not searched for the others
TEMPERATURES = (0.0, 1.0)
SHUFFLED = "eagle3-shuffled"
LONGER = "eagle3-longer"
JAKIRO_STAR = "jakiro-star"
EQUAL_NODES = "eagle2-25-nodes"  # as many as EAGLE's static tree has
NODES = {"num_nodes": 59}  # of all dynamic trees
CHAIN = {"depth": 7}  # of draft models, and of the blocks of heads
# the package's draft model, unchanged as SERIAL, and further trained by MASKED to fill masks
DRAFT, SERIAL = "zoo:draft", "speculative-sampling"
MASKED = ("pard", "specdiff", "specdiff2", "deer")
MASKS = ("distillation.num_masks=7",)
# name -> recipe, the head or draft model that is trained for it, and options
DRAFTED: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "medusa": ("medusa", "medusa", {}),
    "hydra": ("hydra", "hydra", {}),
    "chimera": ("chimera", "chimera", {}),
    "eagle": ("eagle", "eagle", {}),
    EQUAL_NODES: ("eagle2", "eagle", {"num_nodes": 25}),
    "eagle2": ("eagle2", "eagle", NODES),
    "hass": ("eagle2", "hass", NODES),
    "coral": ("coral", "coral", NODES),
    "fspad": ("fspad", "fspad", NODES),
    "falcon": ("falcon", "falcon", NODES),
    "gumiho": ("gumiho", "gumiho", NODES),
    "jakiro": ("jakiro", "jakiro", NODES),
    JAKIRO_STAR: ("jakiro", JAKIRO_STAR, {"tree": "static"}),
    "s4c": ("s4c", "s4c", {"width": 10, **NODES}),
    "eagle3": ("eagle3", "eagle3", NODES),
    SHUFFLED: ("eagle3", SHUFFLED, NODES),
    LONGER: ("gto", LONGER, NODES),  # the same tree
    "gto": ("gto", "gto", NODES),
    "parallelspec": ("parallelspec", "parallelspec", NODES),
    "p-eagle": ("p-eagle", "p-eagle", NODES),
    "dart": ("dart", "dart", NODES),
    "dflash": ("dflash", "dflash", CHAIN),
    "ddtree": ("ddtree", "dflash", NODES),
    "dspark": ("dspark", "dspark", {"confidence": 0.0, **CHAIN}),
    SERIAL: (SERIAL, "", {"draft": DRAFT, **CHAIN}),
    "pard": ("pard", "pard", CHAIN),
    "specdiff": ("specdiff", "specdiff", CHAIN),
    "diffuspec": ("diffuspec", "specdiff", {"shortest": 7, "growth": 0}),
    "specdiff2": ("specdiff2", "specdiff2", CHAIN),
    "deer": ("deer", "deer", CHAIN),
}

# settings of the heads; those of the package are smaller
SETTINGS: dict[str, tuple[str, ...]] = {
    "medusa": ("head.draft_vocab=1536", "head.num_heads=4"),
    "chimera": ("head.draft_vocab=1536",),
    "hydra": ("head.draft_vocab=1536", "head.num_heads=3", "head.num_layers=1"),
    "eagle3": ("head.draft_vocab=2048",),
    "p-eagle": ("head.draft_vocab=2048",),
    "gto": ("trees.groups=1",),
    JAKIRO_STAR: ("head.contrast=false",),
    "pard": MASKS,
    "specdiff": MASKS,
    "deer": MASKS,
    "specdiff2": (*MASKS, "answers.temperatures=0,1", "answers.top_p=1"),  # the answers of all others
}
# heads of another name than the method that trains them
VARIANTS = {SHUFFLED: "eagle3", JAKIRO_STAR: "jakiro"}
# heads that are another one at first -> the method that trains them further, and that one
BEGUN_AS = {LONGER: ("eagle3", "eagle3"), "gto": ("gto", "eagle3")}
# the first is to be accepted more than the second, or is compared with what it is made of
ORDERINGS = (
    ("eagle", "medusa"),
    ("hydra", "medusa"),
    ("chimera", "medusa"),
    (EQUAL_NODES, "eagle"),
    ("eagle2", "eagle"),
    ("hass", "eagle2"),
    ("coral", "eagle2"),
    ("coral", "hass"),
    ("fspad", "eagle2"),
    ("falcon", "eagle2"),
    ("gumiho", "eagle2"),
    ("jakiro", "eagle2"),
    (JAKIRO_STAR, "eagle"),
    ("s4c", "eagle2"),
    ("eagle3", "eagle2"),
    ("eagle3", SHUFFLED),
    ("gto", LONGER),
    ("parallelspec", "eagle2"),
    ("p-eagle", "eagle3"),
    ("dart", "ddtree"),
    ("ddtree", "dflash"),
    ("dspark", "dflash"),
    *((name, SERIAL) for name in ("pard", "specdiff", "deer")),
    ("specdiff2", "specdiff"),
    ("diffuspec", "specdiff"),
)


@dataclass(frozen=True)
class Length:
    """Tokens per step on one prompt."""

    name: str  # of DRAFTED
    seed: int  # of the training
    prompt: str
    temperature: float
    tokens_per_step: float


@dataclass(frozen=True)
class Ordering:
    """The ratio of two acceptance lengths."""

    name: str
    over: str
    temperature: float
    prompts: int
    ratio: Interval


@dataclass(frozen=True)
class Training:
    """The runs' folder, and what is equal in all of them."""

    folder: Path
    target: outpace.Model  # which answers the prompts
    changes: tuple[str, ...]
    further: int = 0  # steps of heads that were another one at first

    def prepare(self) -> None:
        """Write the prompts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._prompts.is_file():
            write_prompts(self._prompts, PROMPTS, seed=0)

    def run(self, head: str, seed: int, steps: int, rate: str, draft: str | None = None) -> Path:
        """Train a head, or the draft model `draft`, unless that was done; returns its folder. Heads of
        BEGUN_AS learn `further` steps after as many of the other head."""
        method, first = BEGUN_AS.get(head, (learned_as(head), None))
        begun = None if first is None else str(self.run(first, seed, steps, rate))
        folder = self.folder / f"{head}-{steps if begun is None else f'{steps}+{self.further}'}-{rate}-{seed}"
        if (folder / PROVENANCE).is_file():
            return folder
        captured = self.folder / "captured"
        if head == SHUFFLED:
            captured = self._shuffled(captured)
        train(
            method,
            target=self.target,
            data=str(self._prompts),
            output=folder,
            draft=draft,
            head=begun,
            changes=(
                *COMMON,
                *SETTINGS.get(method, ()),
                *(SETTINGS.get(head, ()) if head in VARIANTS else ()),
                *self.changes,
                f"steps={steps if begun is None else self.further}",
                f"optimizer.rate={rate}",
                f"seed={seed}",
            ),
            captured=captured,
        )
        return folder

    def best_rate(self, head: str, steps: int, rates: Sequence[str], draft: str | None = None) -> str:
        """The learning rate with the largest acceptance length on held-out texts after so many steps."""
        if len(rates) == 1:
            return rates[0]
        found: dict[str, float] = {}
        for rate in rates:
            text = (self.run(head, 0, steps, rate, draft) / PROVENANCE).read_text(encoding="utf-8")
            found[rate] = json_files.loads(text)["evaluations"][-1]["acceptance_length"]
        return max(rates, key=lambda rate: found[rate])

    @property
    def _prompts(self) -> Path:
        return self.folder / "prompts.jsonl"

    def _shuffled(self, captured: Path) -> Path:
        """A copy of the hidden states in which those that EAGLE-3 reads belong to other tokens of the same
        text. What the head is to predict follows from the last ones, which stay."""
        folder = captured.with_name("captured-shuffled")
        if folder.is_dir():
            return folder
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(captured, partial)
        for path in sorted(partial.glob("*/*.safetensors")):
            tensors = load_file(path)
            order = random.Random(path.name).sample(range(len(tensors["-1"])), len(tensors["-1"]))
            save_file({key: each if key == "-1" else each[order] for key, each in tensors.items()}, path)
        partial.rename(folder)
        return folder


def learned_as(head: str) -> str:
    """The method by which a head learns first."""
    return BEGUN_AS[head][1] if head in BEGUN_AS else VARIANTS.get(head, head)


def measured(
    name: str,
    recipe: str,
    drafter: Mapping[str, Any],
    folder: Path,
    seed: int,
    target: outpace.Model,
    items: Sequence[WorkloadItem],
    max_tokens: int,
) -> list[Length]:
    """The tokens per step of a recipe with a trained drafter (its option and folder) on every prompt, at each
    temperature; kept in `folder` for the commit that was measured."""
    kept, revision = folder / f"lengths-{name}-{len(items)}-{max_tokens}.json", commit()
    if kept.is_file():
        before = json_files.loads(kept.read_text(encoding="utf-8"))
        if before.get("commit") == revision:
            return [replace(Length(**each), seed=seed) for each in before["lengths"]]
    prompts = [encode(target.tokenizer, item).tolist() for item in items]
    found: list[Length] = []
    for temperature in TEMPERATURES:
        results = outpace.generate(
            target,
            prompts,
            recipe,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=0,
            ignore_eos=True,
            **drafter,
        )
        for item, result in zip(items, results, strict=True):
            length = result.statistics.num_tokens / result.statistics.num_steps
            found.append(Length(name, seed, item.id, temperature, length))
    write_json(kept, {"commit": revision, "lengths": [asdict(each) for each in found]})
    return found


def ordering(lengths: Sequence[Length], name: str, over: str, temperature: float) -> Ordering:
    """Compare two names of DRAFTED. The seeds of a prompt are its repetitions: prompts are resampled."""
    values = {
        (each.name, each.prompt, each.seed): each.tokens_per_step
        for each in lengths
        if each.temperature == temperature
    }
    ratios: dict[str, list[float]] = {}
    for (of, prompt, seed), value in values.items():
        if of == name and (over, prompt, seed) in values:
            ratios.setdefault(prompt, []).append(value / values[over, prompt, seed])
    return Ordering(name, over, temperature, len(ratios), median_interval(list(ratios.values())))


def means(lengths: Sequence[Length]) -> dict[tuple[str, float], float]:
    """(name, temperature) -> tokens per step, the mean over prompts and seeds."""
    found: dict[tuple[str, float], list[float]] = {}
    for each in lengths:
        found.setdefault((each.name, each.temperature), []).append(each.tokens_per_step)
    return {key: fmean(values) for key, values in found.items()}


def to_tables(lengths: Sequence[Length], orderings: Sequence[Ordering]) -> list[Table]:
    """The mean acceptance lengths, and their ratios."""
    mean = means(lengths)
    rows = [
        (name, *(f"{mean[name, temperature]:.2f}" for temperature in TEMPERATURES))
        for name in dict.fromkeys(each.name for each in lengths)
    ]
    ratios = [
        (
            f"{each.name} over {each.over}",
            f"{each.temperature:g}",
            f"{each.ratio.median:.3f}",
            f"{each.ratio.low:.3f} to {each.ratio.high:.3f}",
        )
        for each in orderings
    ]
    columns = ("tokens per step", *(f"temperature {each:g}" for each in TEMPERATURES))
    return [
        Table("Acceptance length", columns, tuple(rows)),
        Table("Ratios", ("heads", "temperature", "median", "95 %"), tuple(ratios)),
    ]


def write_lengths(
    path: Path,
    schema: str,
    settings: dict[str, Any],
    lengths: Sequence[Length],
    orderings: Sequence[Ordering],
    num_threads: int,
) -> None:
    """Write acceptance lengths, their means and their ratios as a result file. `num_threads`: of torch while
    they were measured."""
    results = [
        {"name": name, "temperature": temperature, "tokens_per_step": value}
        for (name, temperature), value in means(lengths).items()
    ]
    data: dict[str, Any] = {
        "schema": schema,
        "provenance": provenance(num_threads=num_threads),
        "settings": settings,
        "results": results,
        "ratios": [asdict(each) for each in orderings],
        "lengths": [asdict(each) for each in lengths],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, data)


def main(
    json: Annotated[Path, typer.Option(help="File to write.")],
    folder: Annotated[Path, typer.Option(help="Folder of the training runs.")] = Path("out/orderings"),
    steps: Annotated[int, typer.Option(min=1, help="Steps of every head.")] = 500,
    further: Annotated[int, typer.Option(min=1, help="Steps of heads that begin as a trained one.")] = 100,
    search_steps: Annotated[int, typer.Option(min=1, help="Steps with each learning rate.")] = 200,
    rates: Annotated[str, typer.Option(help="Learning rates.")] = RATES,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of weights and order.")] = 3,
    heads: Annotated[str, typer.Option(help=f"Of {', '.join(DRAFTED)}.")] = ",".join(DRAFTED),
    prompts: Annotated[int, typer.Option(min=3, help="Prompts of each built-in set.")] = 6,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 96,
    changes: Annotated[list[str] | None, typer.Option("--set", help="A setting of every training.")] = None,
    number: Annotated[int, typer.Option("--threads", min=1, help="CPU threads.")] = 1,
) -> None:
    """Train draft heads alike and compare their acceptance lengths."""
    names = heads.split(",")
    if unknown := set(names) - set(DRAFTED):
        raise typer.BadParameter(f"there is no head {min(unknown)}: use {', '.join(DRAFTED)}")
    items = [item for source in BUILT_IN for item in load_items(source, prompts)]
    with threads(number):
        # compiled, it answers in a quarter of the time
        answering = outpace.load(TARGET, dtype="bfloat16", compile=True)
        target = outpace.load(TARGET, dtype="float32")
        training = Training(folder, answering, ("answers.batch=64", *(changes or ())), further)
        training.prepare()
        used = dict.fromkeys(learned_as(DRAFTED[name][1]) for name in names if DRAFTED[name][1])
        best = {
            head: training.best_rate(head, search_steps, rates.split(","), DRAFT if head in MASKED else None)
            for head in used
        }
        lengths: list[Length] = []
        with progress(len(names) * seeds) as advance:
            for seed in range(seeds):
                for name in names:
                    recipe, head, drafter = DRAFTED[name]
                    trained = folder
                    if head:
                        draft = DRAFT if head in MASKED else None
                        trained = training.run(head, seed, steps, best[learned_as(head)], draft)
                        drafter = {"head" if draft is None else "draft": str(trained), **drafter}
                    lengths += measured(name, recipe, drafter, trained, seed, target, items, max_tokens)
                    advance(f"{name}, seed {seed}", 1)
    found = [
        ordering(lengths, name, over, temperature)
        for name, over in ORDERINGS
        for temperature in TEMPERATURES
        if {name, over} <= set(names)
    ]
    print_tables(to_tables(lengths, found))
    settings = {
        "steps": steps,
        "further": further,
        "search_steps": search_steps,
        "seeds": seeds,
        "rates": best,
        "changes": changes or [],
        "max_tokens": max_tokens,
    }
    write_lengths(json, "outpace-head-orderings/1", settings, lengths, found, number)


if __name__ == "__main__":
    typer.run(main)
