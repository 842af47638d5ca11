"""Decoding several prompts to the end with some parts: what the distribution tests need of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from outpace.core.context import Context
from outpace.core.contracts import Parts, Scores, TargetProbs
from outpace.core.noise import KeyedNoise, Noise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.sampling.target_probs import LazyTargetProbs


def texts(
    parts: Parts,
    prompts: Sequence[Sequence[int]],
    sampling: Sequence[SamplingParams],
    noise: Callable[[Sequence[int], Sequence[int], Sequence[int]], Noise] = KeyedNoise,
    target_probs: Callable[[Scores, TokenTree, Context], TargetProbs] = LazyTargetProbs,
) -> list[list[int]]:
    """The tokens generated after each prompt, all of them decoded as one batch."""
    session = Session(
        parts, [torch.tensor(prompt) for prompt in prompts], sampling, target_probs, noise=noise
    )
    for _ in session.steps():
        pass
    return [session.output(slot) for slot in range(len(prompts))]
