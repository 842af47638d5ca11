"""Decodes several prompts to the end in one session."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from outpace.core.contracts import MakeTargetProbs, Parts, Step
from outpace.core.noise import KeyedNoise, Noise
from outpace.core.sampling_params import SamplingParams
from outpace.decode import PROMPT_TOKENS
from outpace.engine.engine import Engine
from outpace.sampling.target_probs import LazyTargetProbs


def texts(
    parts: Parts,
    prompts: Sequence[Sequence[int]],
    sampling: Sequence[SamplingParams],
    noise: Callable[[Sequence[int], Sequence[int], Sequence[int]], Noise] = KeyedNoise,
    target_probs: MakeTargetProbs = LazyTargetProbs,
    observe: Callable[[Step], None] | None = None,  # called with every step
    prompt_tokens: int = PROMPT_TOKENS,  # most prompt tokens that one step reads
) -> list[list[int]]:
    """The generated tokens of each prompt, decoded as one batch; `sampling` has one item per prompt."""
    engine = Engine.of(
        parts,
        [torch.tensor(prompt) for prompt in prompts],
        sampling,
        target_probs=target_probs,
        noise=noise,
        prompt_tokens=prompt_tokens,
    )
    for step in engine.steps():
        if observe is not None:
            observe(step)
    return [engine.output(slot) for slot in range(len(prompts))]
