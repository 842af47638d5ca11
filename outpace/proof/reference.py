"""The output distribution that a method promises, computed without the engine: plain decoding with the logits
of the target, or of the reference that a LOSSY method states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeVar

import torch
from torch import Tensor

from outpace.core.contracts import Reference, StepReference, StepRequest
from outpace.core.sampling_params import SamplingParams
from outpace.proof.sampling_cases import adjusted, stated

Outcome = TypeVar("Outcome")
# M texts of equal length -> (M, V) logits of the next token
Logits = Callable[[list[tuple[int, ...]]], Tensor]


@dataclass(frozen=True)
class StepByStep:
    """A distribution that is stated step by step, with the logits of the target."""

    reference: StepReference
    logits: Logits


Promise = Logits | Reference | StepByStep


def promised(reference: Reference | StepReference | None, logits: Logits) -> Promise:
    """The promise of a method with this reference, for a target with these logits."""
    if isinstance(reference, StepReference):
        return StepByStep(reference, logits)
    return logits if reference is None else reference


def plain_distribution(
    of: Promise, prompt: Sequence[int], sampling: SamplingParams
) -> dict[tuple[int, ...], float]:
    """Continuation (stop token included) -> promised probability with these parameters."""
    if isinstance(of, StepByStep):
        return _by_steps(of, tuple(prompt), sampling)
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


def _by_steps(
    of: StepByStep, prompt: tuple[int, ...], sampling: SamplingParams
) -> dict[tuple[int, ...], float]:
    @cache
    def probs(text: tuple[int, ...]) -> Tensor:
        return stated(of.logits([text]), [text], sampling, len(prompt))[0]

    def changed(text: tuple[int, ...], logits: Tensor) -> Tensor:
        return adjusted(logits[None], [text], sampling, len(prompt))[0]

    request = StepRequest(sampling, len(prompt), probs, changed)
    finished: dict[tuple[int, ...], float] = {}
    open_texts: dict[tuple[int, ...], float] = {(): 1.0}
    while open_texts:
        # shortest text first: all steps that lead to it have then been followed
        text = min(open_texts, key=len)
        before, limit = open_texts.pop(text), sampling.max_tokens - len(text)
        for probability, tokens in of.reference.step((*prompt, *text), limit, request):
            end = next((at for at, token in enumerate(tokens, 1) if token in sampling.stop), limit)
            new = (*text, *tokens[: min(end, limit)])
            ended = len(new) == sampling.max_tokens or new[-1] in sampling.stop
            texts = finished if ended else open_texts
            texts[new] = texts.get(new, 0.0) + before * probability
    return finished


def difference(one: Mapping[Outcome, float], other: Mapping[Outcome, float]) -> float:
    """Largest absolute difference of an outcome's probability between two distributions."""
    return max(
        (abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in one.keys() | other.keys()), default=0.0
    )


def table_logits(logits: Tensor, state: Callable[[Sequence[int]], int]) -> Logits:
    """`Logits` of a table model: `logits` is its table (S, V), `state` the row of the table after a text."""
    return lambda texts: logits[torch.tensor([state(text) for text in texts])]
