"""The output distribution that a method promises, computed without the engine: plain decoding with the logits
of the target, or of the reference that a LOSSY method states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeVar

import torch
from torch import Tensor

from outpace.core.contracts import Reference, ReferenceRequest, StatedProbs, StepReference
from outpace.core.sampling_params import SamplingParams
from outpace.proof.sampling_cases import adjusted, stated

Outcome = TypeVar("Outcome")
# M texts of equal length -> (M, V) logits of the next token
Logits = Callable[[list[tuple[int, ...]]], Tensor]


@dataclass(frozen=True)
class Stated:
    """A distribution that is stated token by token or step by step, with the logits of the target."""

    reference: StatedProbs | StepReference
    logits: Logits

    def request(self, sampling: SamplingParams, prompt_length: int) -> ReferenceRequest:
        """What the reference is given of a request."""

        def logits(text: tuple[int, ...]) -> Tensor:
            return self.logits([text])[0]

        def probs_of(text: tuple[int, ...], logits: Tensor) -> Tensor:
            return stated(logits[None], [text], sampling, prompt_length)[0]

        @cache
        def probs(text: tuple[int, ...]) -> Tensor:
            return probs_of(text, logits(text))

        def changed(text: tuple[int, ...], logits: Tensor) -> Tensor:
            return adjusted(logits[None], [text], sampling, prompt_length)[0]

        return ReferenceRequest(sampling, prompt_length, logits, probs, probs_of, changed)


Promise = Logits | Reference | Stated


def promised(reference: Reference | StatedProbs | StepReference | None, logits: Logits) -> Promise:
    """The promise of a method with this reference, for a target with these logits."""
    if isinstance(reference, StatedProbs | StepReference):
        return Stated(reference, logits)
    return logits if reference is None else reference


def plain_distribution(
    of: Promise, prompt: Sequence[int], sampling: SamplingParams
) -> dict[tuple[int, ...], float]:
    """Continuation (stop token included) -> promised probability with these parameters."""
    if isinstance(of, Stated) and isinstance(of.reference, StepReference):
        return _by_steps(of.reference, tuple(prompt), of.request(sampling, len(prompt)))
    next_probs = _next_probs(of, sampling, len(prompt))
    finished: dict[tuple[int, ...], float] = {}
    open_texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(sampling.max_tokens):
        texts = list(open_texts)
        whole = [(*prompt, *text) for text in texts]
        distributions = next_probs(whole)
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


def _next_probs(
    of: Promise, sampling: SamplingParams, prompt_length: int
) -> Callable[[list[tuple[int, ...]]], Tensor]:
    """M texts of equal length -> (M, V) promised distributions of the next token."""
    if isinstance(of, Stated):
        reference, request = of.reference, of.request(sampling, prompt_length)
        assert isinstance(reference, StatedProbs)
        return lambda texts: torch.stack([reference.next_probs(text, request) for text in texts])
    logits = partial(of.logits, prompt_length=prompt_length) if isinstance(of, Reference) else of
    return lambda texts: stated(logits(texts), texts, sampling, prompt_length)


def _by_steps(
    reference: StepReference, prompt: tuple[int, ...], request: ReferenceRequest
) -> dict[tuple[int, ...], float]:
    sampling = request.sampling
    finished: dict[tuple[int, ...], float] = {}
    open_texts: dict[tuple[int, ...], float] = {(): 1.0}
    while open_texts:
        # shortest text first: all steps that lead to it have then been followed
        text = min(open_texts, key=len)
        before, limit = open_texts.pop(text), sampling.max_tokens - len(text)
        for probability, tokens in reference.step((*prompt, *text), limit, request):
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
