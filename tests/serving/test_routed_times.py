"""The times of a step in a batch with several methods."""

from __future__ import annotations

import torch

from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.lookup.ngram import NGram
from outpace.models.table import TableTarget
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.training_free.prompt_lookup import prompt_lookup
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.serving.routed import routed


class Times(NGram):
    """Records which parts of its steps had times."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[set[str]] = []

    def observe(self, step: Step) -> None:
        self.parts.append(set(step.seconds))


def test_a_method_sees_times_only_of_steps_that_are_its_own() -> None:
    target, drafter = TableTarget(5), Times()
    first = prompt_lookup.build(target)
    own = Parts(target, drafter, first.verifier, first.controller)
    parts, routes = routed({"own": own, "other": autoregressive.build(target)})
    session = Session(parts, (), (), LazyTargetProbs)
    session.add(torch.tensor([1, 2, 3]), SamplingParams(max_tokens=12))
    routes.choose(session.add(torch.tensor([4, 2]), SamplingParams(max_tokens=2)), "other")
    shared = [len(step.ctx.slots) == 2 for step in session.steps()]
    assert shared[0] and not shared[-1]
    assert [not parts for parts in drafter.parts] == shared
