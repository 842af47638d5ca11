"""Plain decoding: one token a step, nothing drafted."""

from __future__ import annotations

import torch

from outpace.core.context import Sampling
from outpace.decode import Session
from outpace.models.toy import Table
from outpace.recipes.autoregressive import autoregressive
from outpace.sampling.law import TargetLaw

TARGET = Table(4, seed=1)


def test_every_step_emits_the_targets_own_token() -> None:
    session = Session(autoregressive.build(TARGET), [torch.tensor([1, 2])], [Sampling(max_tokens=30)], TargetLaw)
    text = [1, 2]
    for step in session.steps():
        if step.scores.logits is None:
            continue
        assert len(step.draft.tree) == 1 and step.draft.forwards == 0
        assert step.emitted == ([int(TARGET.logits[TARGET.state(text)].argmax())],)
        text += step.emitted[0]
    assert len(text) == 32
