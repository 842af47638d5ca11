"""The README.md of a folder with a trained drafter: a model card as hubs show it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outpace.models.names import ZOO
from outpace.training.evaluation import (
    DrafterEvaluation,
    Evaluation,
    ExitEvaluation,
    LengthEvaluation,
    PredictorEvaluation,
)
from outpace.training.methods import (
    ADAPTERS,
    DRAFT_MODELS,
    EXIT_MODELS,
    EXIT_PREDICTORS,
    FEATURE_HEADS,
    LENGTH_PREDICTORS,
    PREDICTORS,
    ROUTED,
    TARGETS,
)

PAPERS = {
    "eagle": ("EAGLE", "2401.15077"),
    "hass": ("HASS", "2408.15766"),
    "eagle3": ("EAGLE-3", "2503.01840"),
    "medusa": ("Medusa", "2401.10774"),
    "hydra": ("Hydra", "2402.05109"),
    "mlp-speculator": ("MLP speculator", "2404.19124"),
    "redrafter": ("ReDrafter", "2403.09919"),
    "distillspec": ("DistillSpec", "2310.08461"),
    "adaspec": ("AdaSPEC", "2510.19779"),
    "direct-alignment": ("direct alignment", "2403.00858"),
    "fastdraft": ("FastDraft", "2411.11055"),
    "domain-drafter": ("domain draft models", "2503.07807"),
    "multilingual-drafter": ("multilingual drafters", "2406.16758"),
    "specdec-pp": ("SpecDec++", "2405.19715"),
    "disco": ("DISCO", "2405.04304"),
    "adaeagle": ("AdaEAGLE", "2412.18910"),
    "layerskip": ("LayerSkip", "2404.16710"),
    "kangaroo": ("Kangaroo", "2404.18911"),
    "s2d": ("S2D", "2407.01955"),
    "specee": ("SpecEE", "2504.08850"),
}
HEAD_PER_TOKEN = ("medusa", "hydra")
IN_VLLM = {"eagle": "eagle", "hass": "eagle", "eagle3": "eagle3", "medusa": "medusa"}
MANY = 5  # draft tokens in the vLLM command


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
    method, target = facts["method"], facts["target_name"]
    title, paper = PAPERS[method]
    share = sizes[0] / sizes[1]
    # of the weights that are read for a token: each position has a head of its own
    read = share / facts["config"]["head"]["num_heads"] if method in HEAD_PER_TOKEN else share
    if method in PREDICTORS:
        kind = f"predictor of which tokens of {_draft(facts)} are accepted by {target}"
        does = "ends drafts"
    elif method in LENGTH_PREDICTORS:
        kind = f"predictor of how many tokens of the head {_draft(facts)} are accepted by {target}"
        does = "decides the length of drafts"
    elif method in EXIT_PREDICTORS:
        kind = f"predictor of early exits of {target}"
        does = "lets tokens leave early, to texts"
    elif method in TARGETS:
        kind = f"model with early exits, made from {target}"
        does = "drafts tokens with its first layers"
    elif method in EXIT_MODELS:
        kind, does = f"draft model with several exits, trained on answers of {target}", "drafts tokens"
    elif method in ADAPTERS:
        kind = f"draft head for {target}, behind its first layers"
        does = "drafts tokens"
    else:
        kind = f"{'draft model' if method in DRAFT_MODELS else 'draft head'} for {target}"
        does = "drafts tokens"
    verified, whose = (
        "the target verifies: the output's distribution stays that of the target",
        "the target's",
    )
    if method in EXIT_PREDICTORS:
        verified = "do not have the target's distribution, unless the whole target verifies (role drafter)"
    if method in TARGETS:
        verified = "all its layers verify: the output's distribution is its own, not that of the model before"
        whose = "its own"
    parts = [
        "---\n"
        f"base_model: {json.dumps(target)}\n"
        "library_name: outpace\n"
        "pipeline_tag: text-generation\n"
        f"tags: [speculative-decoding, {method}]\n"
        "---",
        f"# {name}",
        f"A {kind}, trained with {title} ([arXiv:{paper}](https://arxiv.org/abs/{paper})). It "
        f"{does} that {verified}. {sizes[0]:,} parameters"
        f"{' with these layers' * (method in ADAPTERS)}, {share:.1%} of {whose} {sizes[1]:,}.",
        *_measured(evaluations, read),
        *_growth(facts),
        f"## Training\n\n{facts['texts']} texts with {facts['tokens']} tokens from {facts['data_name']}, "
        f"{_answers(facts)}. outpace {facts['versions']['outpace']}, torch {facts['versions']['torch']}, "
        f"transformers {facts['versions']['transformers']}. All settings are in `training.json`.",
        f"## Use\n\n{_use(name, facts)}",
    ]
    return "\n\n".join(parts) + "\n"


def memory_bound_speedups(agreement: Sequence[float], share: float) -> list[float]:
    """By length of a drafted chain, from 1: tokens per step divided by the cost of a step, if a forward costs
    the bytes of its weights. `agreement`: share of drafts whose first 1, 2, ... tokens are accepted; `share`:
    the drafter's weights by the target's. (MBSU, Goel et al. 2024; Zafrir et al. 2025.)"""
    return [(1 + sum(agreement[:length])) / (1 + length * share) for length in range(1, len(agreement) + 1)]


def _measured(evaluations: Sequence[Evaluation], share: float) -> list[str]:
    if not evaluations:
        return []
    last = evaluations[-1]
    if isinstance(last, PredictorEvaluation):
        return [_predicted(last)]
    if isinstance(last, LengthEvaluation):
        return [_lengths(last)]
    if isinstance(last, ExitEvaluation):
        return ["## Measured on held-out texts\n\n" + " ".join(last.findings) + "."]
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
    """What each part of the data gained, and what was forgotten of other domains."""
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


def _draft(facts: Mapping[str, Any]) -> str:
    """The draft model or head that a predictor is for; a folder without those that it is in."""
    return Path(facts["start"]).name if Path(facts["start"]).is_dir() else facts["start"]


def _answers(facts: Mapping[str, Any]) -> str:
    answers = facts["config"]["answers"]
    if not answers["generate"]:
        return "with the answers of the data"
    temperatures = ", ".join(f"{each:g}" for each in answers["temperatures"])
    return f"with answers that the target generated at temperatures {temperatures}"


def _use(name: str, facts: Mapping[str, Any]) -> str:
    method, target = facts["method"], facts["target_name"]
    if method in TARGETS:
        return f'```bash\noutpace generate "..." --target {name} --method {method}\n```'
    if method in (*PREDICTORS, *LENGTH_PREDICTORS):
        models = f"--{'draft' if method in PREDICTORS else 'head'} {_draft(facts)} --predictor {name}"
        return f'```bash\noutpace generate "..." --target {target} --method {method} {models}\n```'
    if method in EXIT_PREDICTORS:
        models = f"--head {_draft(facts)} --predictor {name}"
        return f'```bash\noutpace generate "..." --target {target} --method {method} {models}\n```'
    model = "--draft" if method in (*DRAFT_MODELS, *EXIT_MODELS) else "--head"
    own = "speculative-sampling" if method in DRAFT_MODELS else method
    commands = [f'outpace generate "..." --target {target} --method {own} {model} {name}']
    if method in ROUTED:
        models = f"--draft GENERIC --specialists {name},OTHERS"
        commands.append(f'outpace generate "..." --target {target} --method {method} {models}')
    if method in FEATURE_HEADS and method != "eagle3":
        commands.append(f'outpace generate "..." --target {target} --method eagle2 --head {name}')
    config = _vllm_config(name, facts)
    if config is not None and not target.startswith(ZOO):
        commands.append(f"vllm serve {target} --speculative-config '{json.dumps(config)}'")
    return "```bash\n" + "\n".join(commands) + "\n```"


def _vllm_config(name: str, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """vLLM's speculative configuration; None for drafters that it does not load."""
    method, head = facts["method"], facts["config"]["head"]
    if method in DRAFT_MODELS:
        return {"model": name, "num_speculative_tokens": MANY}
    if method not in IN_VLLM or (method == "medusa" and head["draft_vocab"]):
        return None
    length = min(MANY, head["num_heads"]) if method in HEAD_PER_TOKEN else MANY
    return {"method": IN_VLLM[method], "model": name, "num_speculative_tokens": length}
