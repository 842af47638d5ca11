"""The parts of a step's time."""

from __future__ import annotations

from time import sleep

import torch

from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.table import TableTarget
from outpace.recipes.base.autoregressive import autoregressive
from outpace.sampling.target_probs import LazyTargetProbs


def test_the_time_between_two_steps_is_the_callers() -> None:
    session = Session(autoregressive.build(TableTarget(5)), (), (), LazyTargetProbs)
    for _ in range(2):  # the time between two runs of the loop is nobody's
        session.add(torch.tensor([1, 2]), SamplingParams(max_tokens=3))
        steps = session.steps()
        first = next(steps)
        assert "caller" not in first.seconds
        sleep(0.02)
        second = next(steps)
        assert second.seconds["caller"] >= 0.02
        assert len(list(steps)) == 1
        sleep(0.02)
