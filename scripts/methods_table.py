"""Update the table of methods in the README from the recipes.

`python scripts/methods_table.py` rewrites the section; with --check it exits with an error if it is out of
date. The documentation site uses `needs` too.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, get_type_hints

from outpace import recipes
from outpace.core.contracts import Recipe, Target
from outpace.drafters.compose.specialists import Specialists
from outpace.models.heads.opened_head import OpenedHead
from outpace.models.predictors.exit_predictor import ExitPredictor
from outpace.models.predictors.predictor import Predictor
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
    drafters += ["a draft model, same tokenizer"] * (Target in required)
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
    return isinstance(annotation, type) and issubclass(annotation, Predictor | ExitPredictor)


def is_file(annotation: Any) -> bool:
    """Whether an option with this annotation is a file that `outpace index` makes."""
    return getattr(annotation, "__supertype__", None) is str


def table() -> str:
    """Markdown table of methods grouped by family, requirements and guarantee, linked to their recipes."""
    found = recipes.find()
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for entry in recipes.entries():
        groups[entry.family, needs(found[entry.name]), entry.guarantee.upper()].append(entry.name)
    lines = ["| Family | Needs, besides the target | Promise | Methods |", "|---|---|---|---|"]
    for (family, need, guarantee), names in sorted(groups.items()):
        links = [f"[{name}]({recipes.files()[name].resolve().relative_to(ROOT)})" for name in names]
        lines.append(f"| {family} | {need} | {guarantee} | {', '.join(links)} |")
    return "\n".join([*lines, ""])


def filled(readme: str) -> str:
    """The README's text with an updated table of methods."""
    return SECTION.sub(lambda match: match[1] + table() + match[2], readme)


if __name__ == "__main__":
    old = README.read_text(encoding="utf-8")
    new = filled(old)
    if "--check" in sys.argv:
        sys.exit("README.md's methods are out of date: run scripts/methods_table.py" if new != old else 0)
    README.write_text(new, encoding="utf-8")
