"""The first token at which the greedy outputs of a method and of plain decoding differ, and whether that is
rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.proof.decode_all import texts

Build = Callable[[], Parts]


@dataclass(frozen=True)
class Divergence:
    """The first generated token of one prompt at which the two outputs differ."""

    prompt: int  # index of the prompt
    position: int  # index in the generated text of the first differing token
    plain: int  # token of plain decoding
    other: int  # token of the method
    gap: float  # logit of `plain` minus logit of `other`
    rounding: bool | None  # True: the outputs are equal in float64; None: not decoded in float64


def divergences(
    plain: Build,
    method: Build,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    logits: Callable[[Sequence[int]], Tensor],  # a text -> (V,) logits of the next token
    replay: Callable[[], tuple[Build, Build]] | None = None,  # (plain, method) in float64, loaded when needed
) -> list[Divergence]:
    """The first divergence of every prompt whose two outputs differ."""
    sampling = [SamplingParams(temperature=0.0, max_tokens=max_tokens)] * len(prompts)
    pairs = list(zip(texts(plain(), prompts, sampling), texts(method(), prompts, sampling), strict=True))
    apart = [index for index, (one, other) in enumerate(pairs) if one != other]
    agree: dict[int, bool] = {}
    if apart and replay is not None:
        builds = replay()
        again = [texts(build(), [prompts[i] for i in apart], sampling[: len(apart)]) for build in builds]
        agree = {index: one == other for index, one, other in zip(apart, *again, strict=True)}
    differing = []
    for index in apart:
        one, other = pairs[index]
        position = next(at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
        scores = logits([*prompts[index], *one[:position]])
        gap = float(scores[one[position]] - scores[other[position]])
        differing.append(Divergence(index, position, one[position], other[position], gap, agree.get(index)))
    return differing
