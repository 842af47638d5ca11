"""Thresholds of QuickSilver that keep perplexity within a budget: `python -m benchmarks.quicksilver FILE`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from outpace.api.model import load
from outpace.core.contracts import Prompt, Target, Want
from outpace.models.slim.make import num_layers, with_savings
from outpace.models.slim.partial_target import PartialTarget
from outpace.models.slim.savings import Savings

STEPS = 8  # of the bisection


def perplexity(target: Target, texts: Sequence[Sequence[int]]) -> float:
    """exp of the mean negative log probability of each token after the first of its text. ValueError if no
    text has two tokens."""
    loss, count = 0.0, 0
    for text in texts:
        if len(text) < 2:
            continue
        tokens = torch.tensor(text)
        cache = target.open(1, len(text))
        # all but the last token are read; the logits after each predict the next
        _, scores = target.prefill([Prompt(tokens)], [0], cache, Want(prompt_logits=True))
        assert scores.logits is not None
        found = scores.logits.float().log_softmax(-1).gather(1, tokens[1:, None].to(scores.logits.device))
        loss, count = loss - float(found.double().sum()), count + len(found)
    if not count:
        raise ValueError("perplexity needs a text of two tokens or more")
    return math.exp(loss / count)


@dataclass(frozen=True)
class Calibration:
    """Thresholds, and what they cost and save on the texts that they were chosen on."""

    savings: Savings
    plain: float  # perplexity of the target itself
    perplexity: float
    share: float  # multiplications that are left, see PartialForward.share_of_products


def calibrated(
    target: Target, texts: Sequence[Sequence[int]], budget: float = 0.2, *, savings: Savings | None = None
) -> Calibration:
    """The largest thresholds, `savings` times one factor, with which the perplexity on these texts rises by
    `budget` at most; by bisection, as it rises with the thresholds. ValueError for a target that is no eager
    transformers model.

    Args:
        target: the target itself
        texts: token ids of held-out texts
        budget: most additional perplexity
        savings: proportions of the thresholds; none: drift 0.2, entropy 1 and fusion 0.1 from the middle on
    """
    first = max(1, num_layers(target) // 2)
    given = savings or Savings(first, drift=0.2, entropy=1.0, fusion=0.1)
    plain = perplexity(target, texts)

    def tried(factor: float) -> Calibration:
        drift, entropy, fusion = (factor * each for each in (given.drift, given.entropy, given.fusion))
        scaled = replace(given, drift=drift, entropy=entropy, fusion=fusion)
        model, _ = with_savings(target, scaled)
        if not isinstance(model, PartialTarget):
            raise ValueError(f"a {type(target).__name__} cannot be calibrated: use a transformers model")
        return Calibration(scaled, plain, perplexity(model, texts), model.share_of_products)

    best, low, high = tried(0.0), 0.0, 4.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        found = tried(middle)
        if found.perplexity <= plain + budget:
            best, low = found, middle
        else:
            high = middle
    return best


def main(
    files: Annotated[list[Path], typer.Argument(help="Texts that the thresholds are chosen on.")],
    target: Annotated[str, typer.Option(help="Target: zoo:NAME or a folder.")] = "zoo:target",
    budget: Annotated[float, typer.Option(help="Most additional perplexity.")] = 0.2,
) -> None:
    """Print the largest thresholds within the budget, as options of quicksilver."""
    model = load(target)
    texts = [model.tokenizer(file.read_text(encoding="utf-8"))["input_ids"] for file in files]
    texts = [text[: model.max_length] for text in texts]
    found = calibrated(model.target, texts, budget)
    savings = found.savings
    typer.echo(f"--drift {savings.drift:.3g} --entropy {savings.entropy:.3g} --fusion {savings.fusion:.3g}")
    typer.echo(f"perplexity {found.plain:.2f}, with these thresholds {found.perplexity:.2f}")
    typer.echo(f"{found.share:.1%} of the multiplications, those of the entropies included")


if __name__ == "__main__":
    typer.run(main)
