"""Drawing which of several arms drafts, with noise that no other choice uses."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outpace.core.context import Context
from outpace.core.noise import Key

ARM = "arm"  # use of the noise keys: the choice is independent of the tokens that are drawn in the step


def draw_arms(ctx: Context, rows: Sequence[int], probs: Sequence[Sequence[float]]) -> list[int]:
    """One arm for each of these rows of the batch, drawn with the probabilities `probs`, (M, number of arms).
    A row in which one arm has probability 1 uses no random number."""
    arms = [max(range(len(each)), key=each.__getitem__) for each in probs]
    open_rows = [at for at, arm in enumerate(arms) if probs[at][arm] < 1]
    if open_rows:
        zeros = [0] * len(open_rows)
        distributions = torch.tensor([list(probs[at]) for at in open_rows], dtype=torch.float64)
        key = Key([rows[at] for at in open_rows], zeros, zeros, ARM)
        for at, arm in zip(open_rows, ctx.noise.choose(distributions, key).tolist(), strict=True):
            arms[at] = arm
    return arms
