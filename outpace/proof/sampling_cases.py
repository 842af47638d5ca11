"""Sampling parameters for the distribution test: requests that combine them, and their reference
distribution.

The reference applies transformers' logits processors instead of the engine's own code where any parameter but
temperature, top_k and top_p is set.

Letters: M texts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, count
from math import comb
from typing import Any

import torch
from torch import Tensor

from outpace.core.sampling_params import BY_NAME, PARAMETERS, SamplingParams
from outpace.sampling.warp import warp

STOP = (1,)


class AtMostOnce:
    """Implementation of core.context.Grammar: `token` may occur at most once in the generated text, so the
    mask depends on every generated token."""

    def __init__(self, token: int = 2, vocab: int = 3) -> None:
        self._token, self._vocab = token, vocab

    def allowed(self, text: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        before = text.tolist().count(self._token)
        mask = torch.ones(len(paths), self._vocab, dtype=torch.bool)
        for node, path in enumerate(paths):
            mask[node, self._token] = before + path.count(self._token) != 1
        return mask


def options(vocab: int) -> dict[str, dict[str, Any]]:
    """Name of each parameter -> its keyword argument, with values that change the distribution over three or
    four tokens, but together still leave several continuations."""
    given = {parameter.name: parameter.proof for parameter in PARAMETERS if parameter.proof is not None}
    values = {name: value(vocab) if callable(value) else value for name, value in given.items()}
    values["grammar"] = AtMostOnce(vocab=vocab)
    return {name: {name: value} for name, value in values.items()}


def crossed(vocab: int, max_tokens: int) -> Iterator[SamplingParams]:
    """Requests (seven for 11 to 15 parameters) such that for any two parameters there is one with both set,
    one with neither, and one with either alone."""
    # covering array (Kleitman, Spencer 1973): each parameter is a different set of more than half of the
    # requests, so any two share a request and neither set contains the other; in one more request no
    # parameter is set
    names = list(options(vocab))
    size = next(size for size in count(2) if comb(size, size // 2 + 1) >= len(names))
    columns = dict(zip(names, combinations(range(size), size // 2 + 1), strict=False))
    for row in range(-1, size):
        yield _request_params(vocab, [name for name, ones in columns.items() if row in ones], max_tokens)


def paired(vocab: int, max_tokens: int) -> Iterator[SamplingParams]:
    """One request per parameter with it alone, and one per pair of parameters with only these two."""
    names = list(options(vocab))
    for wanted in [*((name,) for name in names), *combinations(names, 2)]:
        yield _request_params(vocab, wanted, max_tokens)


def _request_params(vocab: int, names: Sequence[str], max_tokens: int) -> SamplingParams:
    row_params: dict[str, Any] = {"temperature": 1.0, "max_tokens": max_tokens, "stop": STOP}
    for name in names:
        row_params |= options(vocab)[name]
    return SamplingParams(**row_params)


def stated(
    logits: Tensor, texts: Sequence[tuple[int, ...]], sampling: SamplingParams, prompt: int
) -> Tensor:  # (M, V), M texts of equal length -> (M, V)
    """Reference distribution (M, V) of the next token after each of M texts; `prompt`: number of prompt
    tokens in each. The engine's `warp` is used only if just temperature, top_k and top_p are set."""
    if not sampling.changes_logits and {name for name, _ in sampling.truncations} <= {"top_k", "top_p"}:
        return warp(logits, [sampling] * len(texts))
    ids = torch.tensor(texts)
    for processor in _processors(sampling, prompt):
        logits = processor(ids, logits)
    if sampling.greedy:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    return logits.softmax(-1)


def adjusted(
    logits: Tensor, texts: Sequence[tuple[int, ...]], sampling: SamplingParams, prompt: int
) -> Tensor:  # (M, V) -> (M, V)
    """Logits after M texts, changed by the parameters that are applied before temperature."""
    ids = torch.tensor(texts)
    for processor in _processors(replace(sampling, temperature=0.0), prompt):
        logits = processor(ids, logits)
    return logits


def _processors(sampling: SamplingParams, prompt: int) -> Iterator[Any]:
    from transformers.generation import logits_process as t

    if sampling.logit_bias:
        yield t.SequenceBiasLogitsProcessor([[[token], float(bias)] for token, bias in sampling.logit_bias])
    if sampling.repetition_penalty != 1:
        yield t.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        yield lambda ids, logits: _counted(ids[:, prompt:], logits, sampling)
    if sampling.bad_words:
        yield t.NoBadWordsLogitsProcessor(
            [list(word) for word in sampling.bad_words], list(sampling.stop) or None
        )
    if (grammar := sampling.grammar) is not None:
        yield lambda ids, logits: logits.masked_fill(
            ~torch.cat([grammar.allowed(row, [()]) for row in ids[:, prompt:]]), float("-inf")
        )
    if sampling.min_tokens and sampling.stop:
        least = t.MinNewTokensLengthLogitsProcessor(prompt, sampling.min_tokens, list(sampling.stop))
        yield lambda ids, logits: _unless_complete(least(ids, logits), logits)
    if sampling.greedy:
        return
    yield t.TemperatureLogitsWarper(sampling.temperature)
    for name, value in sampling.truncations:
        if not (kind := BY_NAME[name].processor.partition(".")[0]):
            raise NotImplementedError(f"transformers has no {name}: state here what it does")
        yield getattr(t, kind)(value)


def _unless_complete(later: Tensor, logits: Tensor) -> Tensor:
    """`later` (logits without stop tokens); `logits` in rows where no other token is allowed."""
    return torch.where(later.isneginf().all(-1, keepdim=True), logits, later)


def _counted(new: Tensor, logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Logits with presence and frequency penalties as in vLLM; `new` (M, T) are the generated tokens."""
    counts = torch.stack([row.bincount(minlength=logits.shape[-1]) for row in new])
    return logits - sampling.frequency_penalty * counts - sampling.presence_penalty * (counts > 0)
