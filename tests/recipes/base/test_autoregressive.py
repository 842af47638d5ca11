"""Plain decoding: one token a step, nothing drafted."""

from __future__ import annotations

import torch

from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.table import TableTarget
from outpace.recipes.base.autoregressive import autoregressive
from outpace.sampling.target_probs import LazyTargetProbs

TARGET = TableTarget(4, seed=1)


def test_every_step_emits_the_targets_own_token() -> None:
    session = Session(
        autoregressive.build(TARGET), [torch.tensor([1, 2])], [SamplingParams(max_tokens=30)], LazyTargetProbs
    )
    text = [1, 2]
    for step in session.steps():
        if step.scores.logits is None:
            continue
        assert len(step.draft.tree) == 1 and step.draft.forwards == 0
        assert step.generated == ([int(TARGET.logits[TARGET.state(text)].argmax())],)
        text += step.generated[0]
    assert len(text) == 32
