"""LayerSkip: the target's first layers draft."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.slim.slim_table import SlimTable
from outpace.models.table import TableTarget
from outpace.recipes.self_speculation.layerskip import layerskip
from outpace.sampling.target_probs import LazyTargetProbs

TARGET = TableTarget(8, seed=1, order=2)


def run(temperature: float = 1.0, **options) -> list:
    parts = layerskip.build(TARGET, **options)
    prompts = [torch.tensor(text) for text in ([1, 2, 3], [5])]
    sampling = [SamplingParams(temperature, max_tokens=60, seed=seed) for seed in (3, 4)]
    return list(Session(parts, prompts, sampling, LazyTargetProbs).steps())


def model_of(**options) -> SlimTable:
    return layerskip.build(TARGET, **options).drafter._drafter.model


def test_a_quarter_of_the_layers_drafts_by_default() -> None:
    assert model_of().skip_set.layers == {1, 2, 3}
    assert model_of(exit_layer=3).skip_set.layers == {3}


def test_chains_of_the_given_depth_follow_a_first_step_without_a_draft() -> None:
    steps = run(depth=4)
    assert len(steps[0].draft.tree) == 2
    longest = [max(step.draft.tree.forest.depths) for step in steps[1:-4]]
    assert set(longest) == {4}
    assert sum(len(tokens) for step in steps for tokens in step.generated) == 120


def test_more_layers_agree_more_often() -> None:
    kept = [len(run(exit_layer=layer)) for layer in (1, 2, 3)]
    assert kept[0] > kept[1] > kept[2]


@pytest.mark.parametrize("exit_layer", [0, 4])
def test_an_exit_that_the_target_lacks(exit_layer: int) -> None:
    with pytest.raises(ValueError, match=f"4 layers has no exit after {exit_layer} of them: use 1 to 3"):
        layerskip.build(TARGET, exit_layer=exit_layer)


def test_a_target_without_layers() -> None:
    with pytest.raises(ValueError, match="SimpleNamespace has no layers to skip: use a transformers model"):
        layerskip.build(SimpleNamespace())
