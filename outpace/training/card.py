"""The README.md of a folder with a trained drafter: a model card as hubs show it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outpace.api.engines import ENGINES
from outpace.models.names import ZOO
from outpace.training.evaluation import (
    ClassifierEvaluation,
    DrafterEvaluation,
    Evaluation,
    ExitEvaluation,
    LengthEvaluation,
    PredictorEvaluation,
    RevealEvaluation,
    RollbackEvaluation,
)
from outpace.training.methods import named


def write_card(
    folder: Path,
    facts: Mapping[str, Any],  # of training.json
    evaluations: Sequence[Evaluation],
    sizes: tuple[int, int],  # parameters of the drafter and of the target
) -> None:
    """Write README.md into the drafter's folder."""
    (folder / "README.md").write_text(card(folder.name, facts, evaluations, sizes), encoding="utf-8")


def card(
    name: str, facts: Mapping[str, Any], evaluations: Sequence[Evaluation], sizes: tuple[int, int]
) -> str:
    """The card as Markdown, with the metadata that hubs read at its beginning."""
    method, target = named(facts["method"]), facts["target_name"]
    share = sizes[0] / sizes[1]
    what = method.described(target, _start(facts))
    paper = f"[arXiv:{method.paper}](https://arxiv.org/abs/{method.paper})"
    parts = [
        "---\n"
        f"base_model: {json.dumps(target)}\n"
        "library_name: outpace\n"
        "pipeline_tag: text-generation\n"
        f"tags: [speculative-decoding, {method.name}]\n"
        "---",
        f"# {name}",
        f"A {what}, trained with {method.title} ({paper}). It {method.promise}. {sizes[0]:,} "
        f"parameters{method.counted}, {share:.1%} of {method.whole} {sizes[1]:,}.",
        *_measured(evaluations, share * method.weights_read(facts["config"])),
        *_growth(facts),
        f"## Training\n\n{facts['texts']} texts with {facts['tokens']} tokens from {facts['data_name']}, "
        f"{_answers(facts)}. outpace {facts['versions']['outpace']}, torch {facts['versions']['torch']}, "
        f"transformers {facts['versions']['transformers']}. All settings are in `training.json`.",
        f"## Use\n\n{_use(name, facts)}",
    ]
    return "\n\n".join(parts) + "\n"


def memory_bound_speedups(agreement: Sequence[float], share: float) -> list[float]:
    """For chains of 1, 2, ... draft tokens: tokens per step divided by the cost of a step, if the cost of a
    forward is the bytes of its weights. `agreement`: share of drafts whose first 1, 2, ... tokens are
    accepted; `share`: the drafter's weights relative to the target's. (MBSU, Goel et al. 2024; Zafrir et al.
    2025.)"""
    return [(1 + sum(agreement[:length])) / (1 + length * share) for length in range(1, len(agreement) + 1)]


def _measured(evaluations: Sequence[Evaluation], share: float) -> list[str]:
    if not evaluations:
        return []
    last = evaluations[-1]
    if isinstance(last, PredictorEvaluation):
        return [_predicted(last)]
    if isinstance(last, LengthEvaluation):
        return [_lengths(last)]
    if isinstance(last, RollbackEvaluation | ExitEvaluation | ClassifierEvaluation | RevealEvaluation):
        said = ". ".join(each[0].upper() + each[1:] for each in last.findings)
        return [f"## Measured on held-out texts\n\n{said}."]
    assert isinstance(last, DrafterEvaluation)
    speedups = memory_bound_speedups(last.agreement, share)
    rows = [
        f"| {length} | {agrees:.1%} | {1 + sum(last.agreement[:length]):.2f} | {speedups[length - 1]:.2f} |"
        for length, agrees in enumerate(last.agreement, 1)
    ]
    return [
        "## Measured on held-out texts\n\n"
        f"A token drawn at temperature 1 is accepted with probability {last.acceptance:.3f}. Greedy chains:",
        "| tokens | all are the target's choices | tokens per step | speedup bound by memory |\n"
        "|---|---|---|---|\n" + "\n".join(rows),
        "Chains follow the texts' own tokens. The last column takes a forward's time as the bytes of its "
        f"weights, and is largest for {speedups.index(max(speedups)) + 1} tokens. Measure on your machine "
        "with `outpace bench`.",
    ]


def _growth(facts: Mapping[str, Any]) -> list[str]:
    """What each round of training gained, and how acceptance changed on other domains."""
    if "growth" not in facts:
        return []
    lines = "\n".join(f"- {line}" for line in facts["growth"]["findings"])
    what = "Each number of prompts was trained on anew; the best draft model is kept."
    return [f"## Growing data\n\n{what}\n\n{lines}"]


def _predicted(last: PredictorEvaluation) -> str:
    return (
        "## Measured on held-out texts\n\n"
        f"Of the draft tokens {last.acceptance:.1%} are accepted. Calling them rejected by the "
        f"prediction has an F1 of {last.f1:.3f}, by their draft probability alone "
        f"{last.probability_f1:.3f}, both at the best threshold. The calibration error of the predictions is "
        f"{last.calibration_error:.3f}, with rejections weighted as in training."
    )


def _lengths(last: LengthEvaluation) -> str:
    return (
        "## Measured on held-out texts\n\n"
        f"Drafts are {last.error:.2f} tokens too long or too short in the mean, and with the best constant "
        f"length {last.constant_error:.2f}. Of {last.planned:.2f} draft tokens {last.accepted:.2f} are "
        f"accepted, of the longest drafts {last.longest:.2f}. Means over all positions of greedy texts."
    )


def _start(facts: Mapping[str, Any]) -> str | None:
    """The given draft model or head; a folder without its path."""
    start = facts.get("start")
    return Path(start).name if start and Path(start).is_dir() else start


def _answers(facts: Mapping[str, Any]) -> str:
    answers = facts["config"]["answers"]
    if not answers["generate"]:
        return "with the answers of the data"
    temperatures = ", ".join(f"{temperature:g}" for temperature in answers["temperatures"])
    return f"with answers that the target generated at temperatures {temperatures}"


def _use(name: str, facts: Mapping[str, Any]) -> str:
    method, target = named(facts["method"]), facts["target_name"]
    commands = [f'outpace generate "..." {use}' for use in method.uses(name, target, _start(facts))]
    served = method.in_vllm(facts["config"])
    if served is not None and not target.startswith(ZOO):
        commands.append(ENGINES["vllm"].command(target, name, served))
    return "```bash\n" + "\n".join(commands) + "\n```"
