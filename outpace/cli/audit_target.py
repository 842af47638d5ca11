"""The part of `outpace audit` that looks at a user's own model: greedy divergences and a test of sampled tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from outpace.cli.output import print_table
from outpace.core.contracts import Parts, Recipe


def check(
    recipes: Sequence[Recipe],
    name: str,
    draft: str | None,
    prompts: Sequence[str],
    max_tokens: int,
    samples: int,
    false_alarms: float,
    **how: Any,  # the target is loaded
) -> dict[str, Any]:
    """Per method where greedy texts leave plain decoding's, and whether sampled ones follow the model's distribution."""
    from rich.console import Console
    from rich.progress import track

    from outpace.api import load
    from outpace.api.prompts import encode

    if samples * max_tokens < 320:
        raise ValueError(
            f"{samples} texts of {max_tokens} tokens are too few to test: ask for 320 tokens or more"
        )
    model = load(name, **how)
    tokens = [encode(model.tokenizer, prompt, model.target.vocab, "the prompt") for prompt in prompts]
    drafts = {"draft": draft, "drafts": draft}
    found = []
    with ExitStack() as stack:
        for recipe in track(recipes, "Decoding", console=Console(stderr=True), transient=True):
            needed = {option: drafts[option] for option in recipe.options if option in drafts}
            if any(value is None for value in needed.values()):
                found.append({"method": recipe.name, "skipped": "needs --draft"})
                continue
            found.append(_one(recipe, needed, model, tokens, max_tokens, samples, false_alarms, stack))
    return {
        "target": name,
        "draft": draft,
        "dtype": str(next(model.target.model.parameters()).dtype).removeprefix("torch."),
        "prompts": list(prompts),
        "max_tokens": max_tokens,
        "methods": [each for each in found if "skipped" not in each],
        "skipped": [each for each in found if "skipped" in each],
    }


def _one(
    recipe: Recipe,
    needed: dict[str, Any],
    model: Any,
    prompts: list[list[int]],
    max_tokens: int,
    samples: int,
    false_alarms: float,
    stack: ExitStack,
) -> dict[str, Any]:
    from outpace.api import load
    from outpace.api.model import ModelOpener
    from outpace.core.sampling_params import SamplingParams
    from outpace.proof.decode_all import texts
    from outpace.proof.greedy_divergence import divergences
    from outpace.proof.sampled_test import g_test, places
    from outpace.recipes import configure, get

    def built(over: Any) -> tuple[Callable[[], Parts], Callable[[], Parts]]:
        options = configure(recipe, over.target, needed, ModelOpener(over, stack))
        return (lambda: get("autoregressive").build(over.target)), (
            lambda: recipe.build(over.target, **options)
        )

    def exactly() -> tuple[Callable[[], Parts], Callable[[], Parts]]:
        return built(load(model.name, dtype="float64"))

    plain, method = built(model)
    apart = divergences(
        plain, method, prompts, max_tokens, lambda text: forward(model.target, text)[-1], exactly
    )
    sampling = [SamplingParams(1.0, max_tokens=max_tokens, seed=seed) for seed in range(samples)]
    starts = [prompts[index % len(prompts)] for index in range(samples)]
    generator, numbers = torch.Generator().manual_seed(0), list[float]()
    for first in range(0, samples, 8):
        part = slice(first, first + 8)
        for start, text in zip(starts[part], texts(method(), starts[part], sampling[part]), strict=True):
            distributions = forward(model.target, [*start, *text])[len(start) - 1 : -1].softmax(-1)
            numbers += places(distributions, text, generator)
    test = g_test(numbers, false_alarms)
    return {
        "method": recipe.name,
        "divergences": [asdict(each) for each in apart],
        "bugs": sum(each.rounding is False for each in apart),
        "sampling": {**asdict(test), "holds": test.holds},
    }


def forward(target: Any, text: Sequence[int]) -> Tensor:  # (T, V)
    """The model's own logits, read without the engine: its own attention, no cache."""
    with torch.inference_mode():
        logits = target.model(torch.tensor([list(text)], device=target.device), use_cache=False).logits[0]
    return logits.double().cpu()


def print_checks(report: dict[str, Any]) -> None:
    """The findings on the user's model as tables."""
    rows = []
    for check in report["methods"]:
        test = check["sampling"]
        texts = f"{len(report['prompts']) - len(check['divergences'])} of {len(report['prompts'])}"
        gap = max((abs(each["gap"]) for each in check["divergences"]), default=0.0)
        apart = f"{check['bugs']} bugs" if check["bugs"] else "rounding" if check["divergences"] else "-"
        p_value, found = f"{test['p_value']:.2g}", f"{test['detects']:.3f}"
        rows.append((check["method"], texts, f"{gap:.2g}", apart, str(test["tokens"]), p_value, found))
    columns = (
        "method",
        "greedy texts equal",
        "largest logit gap",
        "cause",
        "sampled tokens",
        "p-value",
        "would detect",
    )
    print_table(columns, rows, f"{report['target']}, {report['dtype']}")
    for each in report["skipped"]:
        print_table(("not checked", "why"), [(each["method"], each["skipped"])])
