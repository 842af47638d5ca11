"""The exact expected number of accepted draft tokens of one step, over all its random outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.engine.engine import Engine
from outpace.proof.enumerated_noise import Branch, EnumeratedNoise


def expected_accepted(build: Callable[[], Parts], depth: int, prompt: Sequence[int] = (0,)) -> float:
    """Expected number of accepted draft tokens in the first step after the prompt, at temperature 1, in a
    request with room for `depth` draft tokens."""
    pending, total = [Branch((), 0)], 0.0
    while pending:
        branch = pending.pop()

        def noise(
            seeds: Sequence[int], turns: Sequence[int], lengths: Sequence[int], branch: Branch = branch
        ) -> EnumeratedNoise:
            return EnumeratedNoise([branch] * len(seeds), turns, lengths)

        sampling = SamplingParams(temperature=1.0, max_tokens=depth + 1)
        engine = Engine.of(build(), [torch.tensor(prompt)], [sampling], noise=noise)
        # before `branch.probability` is read: the step computes it
        accepted = next(len(step.generated[0]) for step in engine.steps() if step.generated[0]) - 1
        total += branch.probability * accepted
        pending += [Branch(script, 0) for script in branch.left_open]
    return total
