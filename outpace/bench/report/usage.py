"""The commands that use what a benchmark recommends."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outpace.bench.measure.measurement import Measurement
from outpace.bench.report.summary import ResultRow

PROMPT = "Your prompt"


def commands(of: Measurement, rows: Sequence[ResultRow]) -> list[str]:
    """Command lines that serve the target, and generate, by the recommended method with the models loaded as
    they were measured; none without a recommendation."""
    advice = of.recommendation(rows)
    if advice.method is None:
        return []
    options = dict(advice.options)
    if advice.draft and not {"draft", "drafts"} & options.keys():
        options["draft"] = advice.draft
    named = "--recipe" if Path(advice.method).suffix == ".py" else "--method"
    words = [*loading(of.settings), named, advice.method, *flags(options)]
    target = str(of.settings.get("target", "TARGET"))
    return [
        shlex.join(each)
        for each in (
            ["outpace", "serve", target, *words],
            ["outpace", "generate", "--target", target, *words, PROMPT],
        )
    ]


def loading(settings: Mapping[str, Any]) -> list[str]:
    """The words of a command line by which the models of a benchmark with these settings are loaded."""
    names = ("compile", "weights", "draft_weights", "kv_cache")
    return flags(settings.get("loading", {}) | {name: settings[name] for name in names if name in settings})


def flags(options: Mapping[str, Any]) -> list[str]:
    """Options by their Python names as words of a command line."""
    words: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            listed = isinstance(value, (list, tuple))
            words += [f"--{flag}", ",".join(map(str, value)) if listed else str(value)]
    return words
