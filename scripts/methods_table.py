"""Write the tables of families in the README and of methods in docs/methods/index.md, from the recipes and
the published results: `python scripts/methods_table.py`. The documentation site uses `needs` too."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from benchmarks.paired import Result, compare, load
from outpace import recipes
from outpace.bench.report.summary import ALL
from outpace.core.contracts import Recipe, Target
from outpace.drafters.compose.specialists import Specialists
from outpace.models.heads.opened_head import OpenedHead
from outpace.models.predictors.predictor import Predictor
from outpace.models.slim.grouped_layers import DeepDraft
from outpace.models.vocabulary import CrossVocabularyDraft
from outpace.recipes._option_kinds import kinds_in

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
SECTION = re.compile(r"(<!-- methods:begin -->\n).*?(<!-- methods:end -->)", re.DOTALL)


def needs(recipe: Recipe) -> str:
    """Text: what a method requires besides the target, then what it can also use."""
    hints = get_type_hints(recipe.build)
    required: set[Any] = set()
    optional: set[Any] = set()
    needed = {name for names in recipe.needs for name in names}
    for name in recipe.options:
        kinds = required if name in needed else optional
        kinds |= {kind.annotation for kind in kinds_in(hints[name])}
    drafters = ["a draft model, any tokenizer"] * (CrossVocabularyDraft in required)
    drafters += ["a draft model, same tokenizer"] * bool({Target, DeepDraft} & required)
    drafters += ["a draft head"] * any(map(is_head, required))
    parts = [", or ".join(drafters)] if drafters else []
    parts += ["a predictor"] * any(map(is_predictor, required)) + ["an index"] * any(map(is_file, required))
    text = " and ".join(parts) or "nothing"
    extras = ["a draft model"] * (Target in optional) + ["a draft head"] * any(map(is_head, optional))
    extras += ["a predictor"] * any(map(is_predictor, optional))
    extras += ["draft models for kinds of prompts"] * (Specialists in optional)
    extras += ["an index"] * any(map(is_file, optional))
    return f"{text} (optional: {' or '.join(extras)})" if extras else text


def is_head(annotation: Any) -> bool:
    """Whether an option with this annotation is a draft head."""
    parent = getattr(annotation, "__supertype__", None)
    return isinstance(parent, type) and issubclass(parent, OpenedHead)


def is_predictor(annotation: Any) -> bool:
    """Whether an option with this annotation is a trained predictor of acceptance, lengths or exits."""
    return isinstance(annotation, type) and issubclass(annotation, Predictor)


def is_file(annotation: Any) -> bool:
    """Whether an option with this annotation is a file that `outpace index` makes."""
    return getattr(annotation, "__supertype__", None) is str


# result files with speedups over plain decoding, those of larger models first
FILES = (
    "auto/auto-113m-cpu",
    "heads/heads-113m-cpu",
    "lookup-or-draft/lookup-or-draft-113m-cpu",
    "self-speculation/self-speculation-113m-cpu",
    "verification/verification-cpu",
    "training-free/training-free-cpu",
    "heads/heads-cpu",
)
SERVED = ("smartspec",)  # measured in a server, by latency
STARTS = {  # family -> what it needs, and the method to start with
    "base": ("a draft model", "speculative-sampling"),
    "training-free": ("nothing", "suffix-decoding"),
    "trained heads": ("a draft head (`outpace train`)", "eagle"),
    "self-speculation": ("nothing, or a target trained with early exits", "layerskip"),
    "diffusion drafters": ("a draft model that fills masks (`outpace train`)", "specdiff"),
    "exact verification": ("a draft model", "block-verification"),
    "other vocabularies": ("any draft model", "tli"),
    "relaxed acceptance": ("a draft model or a draft head", "medusa-typical"),
    "stages": ("a draft model, and one between or n-grams", "polybasic"),
    "control and routing": ("what its methods need", "auto"),
    "online learning": ("a draft model or a draft head, run eagerly", "online-sd"),
    "overlap": ("a draft model, and idle cores or a second device", "pearl"),
    "batching and serving": ("nothing, or a draft model", "smartspec"),
}


@cache
def results(name: str) -> Result:
    """The result file of this name."""
    return load(ROOT / "docs" / "results" / f"{name}.json.gz")


@cache
def measured(method: str) -> str:
    """Markdown: the largest median speedup over plain decoding at temperature 0 in the first of `FILES` that
    has the method, linked from `docs` to its page; "-" if none has."""
    if method in SERVED:
        return "[under load](results/serving.md)"
    for name in FILES:
        labels = dict.fromkeys(run["method"] for run in results(name)["runs"])
        own = [label for label in labels if label.partition(":")[0] == method]
        found = [compare(results(name), label, workload=ALL, temperature=0.0) for label in own]
        medians = [each.ratio.median for each in found if each is not None and each.ratio.known]
        if medians:
            return f"[{max(medians):.2f}x](results/{name.partition('/')[0]}.md)"
    return "-"


def year(paper: str) -> str:
    """The year in which an arXiv number was given; "" for other papers."""
    number = re.search(r"\b(\d\d)(\d\d)\.\d{4,5}", paper)
    return f"20{number[1]}" if number else ""


def families_table() -> str:
    """Markdown table for the README: a row for each family."""
    entries = recipes.entries()
    lines = [
        "| Family | Methods | Needs, besides the target | Start with | Measured |",
        "|---|---:|---|---|---:|",
    ]
    for family, (need, start) in STARTS.items():
        count = sum(entry.family == family for entry in entries)
        link = f"[{start}]({recipes.files()[start].resolve().relative_to(ROOT)})"
        value = measured(start).replace("](results/", "](docs/results/")
        lines.append(f"| {family} | {count} | {need} | {link} | {value} |")
    if missing := {entry.family for entry in entries} - set(STARTS):
        raise KeyError(f"add {', '.join(missing)} to STARTS in scripts/methods_table.py")
    return "\n".join([*lines, ""])


def methods_table() -> str:
    """Markdown table for docs/methods/index.md: a row for each method."""
    found = recipes.find()
    lines = [
        "| Method | Family | Promise | Needs, besides the target | Paper | Year | Measured |",
        "|---|---|---|---|---|---:|---:|",
    ]
    for entry in recipes.entries():
        link = f"[{entry.name}](../../{recipes.files()[entry.name].resolve().relative_to(ROOT)})"
        paper = re.sub(
            r"arXiv:(\d{4}\.\d{4,5})", r"[\g<0>](https://arxiv.org/abs/\1)", found[entry.name].paper
        )
        cells = [link, entry.family, entry.guarantee.upper(), needs(found[entry.name]), paper]
        cells.append(year(found[entry.name].paper))
        value = measured(entry.name).replace("](results/", "](../results/")
        lines.append(f"| {' | '.join([*cells, value])} |")
    return "\n".join([*lines, ""])


PAGES = {README: families_table, ROOT / "docs" / "methods" / "index.md": methods_table}


def filled(path: Path) -> str:
    """The text of one of `PAGES` with its table updated."""
    text = path.read_text(encoding="utf-8")
    return SECTION.sub(lambda match: match[1] + PAGES[path]() + match[2], text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page), encoding="utf-8")
