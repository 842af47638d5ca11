"""The distribution that plain decoding gives, computed without the engine: products of the target's own
probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from outpace.core.sampling_params import SamplingParams
from outpace.proof.sampling_cases import stated

Outcome = TypeVar("Outcome")
Logits = Callable[[list[tuple[int, ...]]], Tensor]  # M texts of one length -> (M, V) logits of the next token


def plain_distribution(
    logits: Logits, prompt: Sequence[int], sampling: SamplingParams
) -> dict[tuple[int, ...], float]:
    """Continuation -> its probability under plain decoding with these settings."""
    finished: dict[tuple[int, ...], float] = {}
    open_texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(sampling.max_tokens):
        texts = list(open_texts)
        whole = [(*prompt, *text) for text in texts]
        distributions = stated(logits(whole), whole, sampling, len(prompt))
        following: dict[tuple[int, ...], float] = {}
        for text, distribution in zip(texts, distributions.tolist(), strict=True):
            for token, chance in enumerate(distribution):
                if chance > 0:
                    ended = token in sampling.stop
                    (finished if ended else following)[(*text, token)] = open_texts[text] * chance
        open_texts = following
        if not open_texts:
            break
    return finished | open_texts


def difference(one: Mapping[Outcome, float], other: Mapping[Outcome, float]) -> float:
    """Largest difference of any outcome's probability."""
    return max(
        (abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in one.keys() | other.keys()), default=0.0
    )


def table_logits(logits: Tensor, state: Callable[[Sequence[int]], int]) -> Logits:
    """`Logits` of a table model."""
    return lambda texts: logits[torch.tensor([state(text) for text in texts])]
