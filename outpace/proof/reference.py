"""The output distribution that a method promises, computed without the engine: plain decoding's, from the
logits of the target or of the reference that a LOSSY method states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from outpace.core.contracts import Reference
from outpace.core.sampling_params import SamplingParams
from outpace.proof.sampling_cases import stated

Outcome = TypeVar("Outcome")
# M texts of equal length -> (M, V) logits of the next token
Logits = Callable[[list[tuple[int, ...]]], Tensor]


def plain_distribution(
    of: Logits | Reference, prompt: Sequence[int], sampling: SamplingParams
) -> dict[tuple[int, ...], float]:
    """Continuation (stop token included) -> probability under plain decoding with these parameters."""
    logits = partial(of.logits, prompt_length=len(prompt)) if isinstance(of, Reference) else of
    finished: dict[tuple[int, ...], float] = {}
    open_texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(sampling.max_tokens):
        texts = list(open_texts)
        whole = [(*prompt, *text) for text in texts]
        distributions = stated(logits(whole), whole, sampling, len(prompt))
        following: dict[tuple[int, ...], float] = {}
        for text, distribution in zip(texts, distributions.tolist(), strict=True):
            for token, probability in enumerate(distribution):
                if probability > 0:
                    ended = token in sampling.stop
                    (finished if ended else following)[(*text, token)] = open_texts[text] * probability
        open_texts = following
        if not open_texts:
            break
    return finished | open_texts


def difference(one: Mapping[Outcome, float], other: Mapping[Outcome, float]) -> float:
    """Largest absolute difference of an outcome's probability between two distributions."""
    return max(
        (abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in one.keys() | other.keys()), default=0.0
    )


def table_logits(logits: Tensor, state: Callable[[Sequence[int]], int]) -> Logits:
    """`Logits` of a table model: `logits` is its table (S, V), `state` the row of the table after a text."""
    return lambda texts: logits[torch.tensor([state(text) for text in texts])]
