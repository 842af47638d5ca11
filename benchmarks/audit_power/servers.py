"""Simulated servers: texts drawn from recorded distributions of a model, correctly or with a bias.

Letters: N recorded texts, T tokens of each, K columns (the most probable tokens and one for all others).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.api.model import load
from outpace.audit.scored_text import ScoredText
from outpace.core.sampling_params import SamplingParams
from outpace.proof.decode_all import texts
from outpace.proof.plain_logits import plain_logits
from outpace.recipes import get

COLUMNS = 128

# p (T, K), ids (T, K), (V + 1,) directions, total variation distance -> other p at that distance from p
Bias = Callable[[Tensor, Tensor, Tensor, float], Tensor]


@dataclass(frozen=True)
class Recorded:
    """The distributions of a model along its own texts."""

    probs: Tensor  # (N, T, K)
    ids: Tensor  # (N, T, K)
    prompts: list[list[int]]
    vocab: int


def record(name: str, prompts: list[str], num_tokens: int, samples: int) -> Recorded:
    """Distributions at temperature 1 along `samples` texts of each prompt."""
    model = load(name, dtype="float32")
    encoded = [model.tokenizer(prompt)["input_ids"] for prompt in prompts for _ in range(samples)]
    sampling = [SamplingParams(1.0, max_tokens=num_tokens, seed=seed) for seed in range(len(encoded))]
    found = texts(get("autoregressive").build(model.target), encoded, sampling)
    probs, ids = list[Tensor](), list[Tensor]()
    for prompt, text in zip(encoded, found, strict=True):
        rows = plain_logits(model.target, [*prompt, *text])[len(prompt) - 1 : -1].softmax(-1)
        top = rows.topk(COLUMNS - 1)
        rest = (1 - top.values.sum(1, keepdim=True)).clamp(min=0)
        p = torch.cat([top.values, rest], 1)
        probs.append(p / p.sum(1, keepdim=True))
        ids.append(torch.cat([top.indices, torch.full((len(text), 1), model.target.vocab)], 1))
    return Recorded(torch.stack(probs), torch.stack(ids), encoded, model.target.vocab)


def answer(
    recorded: Recorded, bias: Bias | None, directions: Tensor, shift: float, generator: torch.Generator
) -> ScoredText:
    """A text whose tokens are drawn from the distributions along a random recorded text, after the bias."""
    which = int(torch.randint(len(recorded.probs), (1,), generator=generator))
    probs, ids = recorded.probs[which], recorded.ids[which]
    drawn_from = probs if bias is None else bias(probs, ids, directions, shift)
    columns = torch.multinomial(drawn_from, 1, generator=generator)
    tokens = ids.gather(1, columns)[:, 0].tolist()
    return ScoredText(
        probs, ids, columns[:, 0], range(len(tokens)), tokens, recorded.prompts[which], recorded.vocab
    )


def _shifted(p: Tensor, other: Tensor, shift: float) -> Tensor:
    """The mixture of p and another distribution at a total variation distance of shift from p, or as near to
    that as the other one is."""
    distance = (other - p).abs().sum(1, keepdim=True) / 2
    share = (shift / distance.clamp(min=1e-12)).clamp(max=1)
    return p + share * (other - p)


def argmax(p: Tensor, ids: Tensor, directions: Tensor, shift: float) -> Tensor:
    """Towards the most probable token."""
    return _shifted(p, torch.zeros_like(p).scatter_(1, p[:, :-1].argmax(1, keepdim=True), 1), shift)


def no_argmax(p: Tensor, ids: Tensor, directions: Tensor, shift: float) -> Tensor:
    """Away from the most probable token."""
    other = p.scatter(1, p[:, :-1].argmax(1, keepdim=True), 0)
    return _shifted(p, other / other.sum(1, keepdim=True).clamp(min=1e-12), shift)


def no_tail(p: Tensor, ids: Tensor, directions: Tensor, shift: float) -> Tensor:
    """The least probable tokens are cut off."""
    order = p.argsort(1)
    sorted_p = p.gather(1, order)
    below = sorted_p.cumsum(1)
    kept = torch.minimum(sorted_p, (below - shift).clamp(min=0))
    return torch.zeros_like(p).scatter_(1, order, kept / kept.sum(1, keepdim=True))


def _tempered(p: Tensor, direction: float, shift: float) -> Tensor:
    """p to the power at which the distance is shift, found by bisection in every row."""
    low, high = torch.zeros(len(p), 1, dtype=p.dtype), torch.full((len(p), 1), 0.9, dtype=p.dtype)
    logs = p.clamp(min=1e-300).log()
    for _ in range(30):
        middle = (low + high) / 2
        other = ((1 + direction * middle) * logs).softmax(1)
        far = (other - p).abs().sum(1, keepdim=True) / 2 > shift
        low, high = torch.where(far, low, middle), torch.where(far, middle, high)
    return ((1 + direction * low) * logs).softmax(1)


def colder(p: Tensor, ids: Tensor, directions: Tensor, shift: float) -> Tensor:
    """A lower temperature."""
    return _tempered(p, 1, shift)


def warmer(p: Tensor, ids: Tensor, directions: Tensor, shift: float) -> Tensor:
    """A higher temperature."""
    return _tempered(p, -1, shift)


def swapped(p: Tensor, ids: Tensor, directions: Tensor, shift: float) -> Tensor:
    """The two most probable tokens are exchanged, in a part of the draws."""
    top = p[:, :-1].topk(2, 1)
    return _shifted(p, p.scatter(1, top.indices, top.values.flip(1)), shift)


def random(p: Tensor, ids: Tensor, directions: Tensor, shift: float) -> Tensor:
    """Every token is more or less probable, by one of two factors at random for each server."""
    other = p * (1 + 0.9 * directions[ids])
    return _shifted(p, other / other.sum(1, keepdim=True), shift)


def uniform(p: Tensor, ids: Tensor, directions: Tensor, shift: float) -> Tensor:
    """Towards equal probabilities of the tokens with a column of their own."""
    other = torch.ones_like(p)
    other[:, -1] = 0
    return _shifted(p, other / other.sum(1, keepdim=True), shift)


BIASES: dict[str, Bias] = {
    each.__name__: each for each in (argmax, no_argmax, no_tail, colder, warmer, swapped, random, uniform)
}
