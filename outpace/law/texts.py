"""Decoding several prompts to the end with some parts: what the law tests need of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from outpace.core.context import Context, Sampling
from outpace.core.contracts import Law, Parts, Scores
from outpace.core.noise import KeyedNoise, Noise
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.sampling.law import TargetLaw


def texts(
    parts: Parts,
    prompts: Sequence[Sequence[int]],
    sampling: Sequence[Sampling],
    noise: Callable[[Sequence[int], Sequence[int], Sequence[int]], Noise] = KeyedNoise,
    law: Callable[[Scores, TokenTree, Context], Law] = TargetLaw,
) -> list[list[int]]:
    """The tokens emitted after each prompt, all of them decoded as one batch."""
    session = Session(parts, [torch.tensor(prompt) for prompt in prompts], sampling, law, noise=noise)
    for _ in session.steps():
        pass
    return [session.output(slot) for slot in range(len(prompts))]
