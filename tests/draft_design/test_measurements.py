"""What draft design measures: acceptance by position, steps of given lengths, and models of given shapes."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.draft_design.measurements import (
    Shape,
    acceptance_by_position,
    context_length,
    forward_times,
    held_out_length,
    num_timed,
    random_candidate,
    step_times,
)
from outpace.core.sampling_params import SamplingParams
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget
from outpace.proof.models import transformers_models

TARGET, OTHER = TableTarget(6, seed=1, order=1), TableTarget(6, seed=2, order=1)
PROMPTS = [torch.tensor([1, 2, 3]), torch.tensor([4, 0]), torch.tensor([5, 5, 1, 0])]


def test_the_target_as_its_own_draft_is_always_accepted() -> None:
    found = acceptance_by_position(TARGET, TARGET, PROMPTS, 4, SamplingParams(1.0, max_tokens=30))
    assert found.acceptance == (1.0,) * 4 and found.tested[0] >= found.tested[3] > 0


def test_positions_are_tested_while_those_before_were_accepted() -> None:
    params = SamplingParams(1.0, max_tokens=400)
    found = acceptance_by_position(TARGET, OTHER, PROMPTS, 3, params)
    # a position is tested as often as the one before it is accepted, but for the ends of texts
    for position in (1, 2):
        reached = found.acceptance[position - 1] * found.tested[position - 1]
        assert 0 <= reached - found.tested[position] <= 3 * len(PROMPTS)
    assert 0 < found.acceptance[0] < 1
    p, q = TARGET.logits.softmax(-1), OTHER.logits.softmax(-1)
    overlap = torch.minimum(p, q).sum(-1)
    assert overlap.min() - 0.1 < found.acceptance[0] < overlap.max() + 0.1


def test_steps_have_all_lengths_in_every_turn() -> None:
    drafts = {"": (None, [0]), "own": (TARGET, [1, 3, 4]), "other": (OTHER, [1, 3, 4])}
    turns: list[None] = []
    found = step_times(
        TARGET,
        drafts,
        PROMPTS,
        rows=2,
        sampling=SamplingParams(max_tokens=16),
        after=lambda: turns.append(None),
    )
    assert {name: sorted(times) for name, times in found.items()} == {
        name: lengths for name, (_, lengths) in drafts.items()
    }
    assert all(seconds > 0 for times in found.values() for seconds in times.values())
    assert len(turns) % 3 == 0
    with pytest.raises(ValueError, match="need max_tokens of at least 10"):
        step_times(TARGET, drafts, PROMPTS, rows=2, sampling=SamplingParams(max_tokens=9))


def test_models_are_made_in_a_shape() -> None:
    base = transformers_models().target
    assert isinstance(base, HFTarget)
    before = torch.random.get_rng_state()
    small, deep, wide = (random_candidate(base, Shape(*each)) for each in ((1, 8, 2), (3, 8, 2), (1, 16, 4)))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert Shape.of(deep.model.model) == Shape(3, 8, 2) and deep.name == "3 x 8, 2 heads"
    assert small.parameters < deep.parameters and small.parameters < wide.parameters
    assert small.model.vocab == base.vocab and next(wide.model.model.parameters()).dtype == torch.float64
    assert base.model.config.hidden_size == 16
    with pytest.raises(ValueError, match="a multiple of 6"):
        random_candidate(base, Shape(1, 8, 3))
    curve, seconds = forward_times(base, [small, deep], [1, 3], rows=2, context=4, repeats=1)
    assert curve.sizes == [1, 2, 4] and len(seconds) == 2 and min(seconds) > 0
    assert num_timed(2, [1, 3], 5) == 5 * (2 + 3)


@pytest.mark.parametrize(("n_inner", "expected"), [(None, 32), (40, 16)])
def test_a_shape_of_an_architecture_that_does_not_name_the_width_of_its_mlps(
    n_inner: int | None, expected: int
) -> None:
    config = GPT2Config(vocab_size=12, n_positions=32, n_embd=16, n_layer=2, n_head=2, n_inner=n_inner)
    made = random_candidate(HFTarget(GPT2LMHeadModel(config).eval()), Shape(1, 8, 2))
    assert made.shape == Shape.of(made.model.model) == Shape(1, 8, 2)
    assert made.model.model.get_submodule("transformer.h.0.mlp.c_fc").weight.shape == (8, expected)


def test_the_length_in_the_middle_is_held_out() -> None:
    assert held_out_length([1, 2, 3, 4, 6, 8]) == 4 and held_out_length([4, 1, 2]) == 2
    assert held_out_length([1, 2]) is None and held_out_length([3]) is None


def test_the_context_is_that_in_the_middle_of_answers() -> None:
    assert context_length(PROMPTS, 64) == 35
