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
SHIFT = 0.05  # total variation distance of the biased distributions

Bias = Callable[[Tensor, Tensor, Tensor], Tensor]  # p (T, K), ids (T, K), (V + 1,) directions -> other p


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
    recorded: Recorded, bias: Bias | None, directions: Tensor, generator: torch.Generator
) -> ScoredText:
    """A text whose tokens are drawn from the distributions along a random recorded text, after the bias."""
    which = int(torch.randint(len(recorded.probs), (1,), generator=generator))
    probs, ids = recorded.probs[which], recorded.ids[which]
    drawn_from = probs if bias is None else bias(probs, ids, directions)
    columns = torch.multinomial(drawn_from, 1, generator=generator)
    tokens = ids.gather(1, columns)[:, 0].tolist()
    return ScoredText(
        probs, ids, columns[:, 0], range(len(tokens)), tokens, recorded.prompts[which], recorded.vocab
    )


def _shifted(p: Tensor, other: Tensor) -> Tensor:
    """The mixture of p and another distribution at a total variation distance of SHIFT from p, or as near to
    that as the other one is."""
    distance = (other - p).abs().sum(1, keepdim=True) / 2
    share = (SHIFT / distance.clamp(min=1e-12)).clamp(max=1)
    return p + share * (other - p)


def argmax(p: Tensor, ids: Tensor, directions: Tensor) -> Tensor:
    """Towards the most probable token."""
    return _shifted(p, torch.zeros_like(p).scatter_(1, p[:, :-1].argmax(1, keepdim=True), 1))


def no_argmax(p: Tensor, ids: Tensor, directions: Tensor) -> Tensor:
    """Away from the most probable token."""
    other = p.scatter(1, p[:, :-1].argmax(1, keepdim=True), 0)
    return _shifted(p, other / other.sum(1, keepdim=True).clamp(min=1e-12))


def no_tail(p: Tensor, ids: Tensor, directions: Tensor) -> Tensor:
    """The least probable tokens, which hold SHIFT of the mass, are cut off."""
    order = p.argsort(1)
    sorted_p = p.gather(1, order)
    below = sorted_p.cumsum(1)
    kept = torch.minimum(sorted_p, (below - SHIFT).clamp(min=0))
    return torch.zeros_like(p).scatter_(1, order, kept / kept.sum(1, keepdim=True))


def _tempered(p: Tensor, direction: float) -> Tensor:
    """p to the power at which the distance is SHIFT, found by bisection in every row."""
    low, high = torch.zeros(len(p), 1, dtype=p.dtype), torch.full((len(p), 1), 0.9, dtype=p.dtype)
    logs = p.clamp(min=1e-300).log()
    for _ in range(30):
        middle = (low + high) / 2
        other = ((1 + direction * middle) * logs).softmax(1)
        far = (other - p).abs().sum(1, keepdim=True) / 2 > SHIFT
        low, high = torch.where(far, low, middle), torch.where(far, middle, high)
    return ((1 + direction * low) * logs).softmax(1)


def colder(p: Tensor, ids: Tensor, directions: Tensor) -> Tensor:
    """A lower temperature."""
    return _tempered(p, 1)


def warmer(p: Tensor, ids: Tensor, directions: Tensor) -> Tensor:
    """A higher temperature."""
    return _tempered(p, -1)


def swapped(p: Tensor, ids: Tensor, directions: Tensor) -> Tensor:
    """The two most probable tokens are exchanged, in as many draws as make SHIFT."""
    top = p[:, :-1].topk(2, 1)
    return _shifted(p, p.scatter(1, top.indices, top.values.flip(1)))


def random(p: Tensor, ids: Tensor, directions: Tensor) -> Tensor:
    """Every token of the vocabulary is more or less probable than it should be, at random: a direction of
    each simulated server."""
    other = p * (1 + 0.9 * directions[ids])
    return _shifted(p, other / other.sum(1, keepdim=True))


def uniform(p: Tensor, ids: Tensor, directions: Tensor) -> Tensor:
    """Towards equal probabilities of the tokens with a column of their own."""
    other = torch.ones_like(p)
    other[:, -1] = 0
    return _shifted(p, other / other.sum(1, keepdim=True))


BIASES: dict[str, Bias] = {
    each.__name__: each for each in (argmax, no_argmax, no_tail, colder, warmer, swapped, random, uniform)
}
