"""S2D's training: all exits of a draft model learn at once."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.hf.target import HFTarget
from outpace.models.slim.exits import usual_exits
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.control.s2d import s2d
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.exit_methods import with_exits
from outpace.training.features import Batch, FeatureSource
from outpace.training.lessons.early_exits import SortedLesson
from outpace.training.losses import cross_entropy
from outpace.training.methods import named
from outpace.training.texts import Example
from tests.llama import llama_config

VOCAB, LENGTH, EXITS, STEPS = 12, 18, (1, 2), 4
NO_NOISE = torch.Generator()


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


@cache
def greedy_text(*prompt: int) -> tuple[int, ...]:
    params = SamplingParams(0, max_tokens=LENGTH - len(prompt))
    session = Session(autoregressive.build(target()), [torch.tensor(prompt)], [params], LazyTargetProbs)
    list(session.steps())
    return tuple(session.request(0).text().tolist())


def batch_of(*texts: tuple[int, ...], first: int = 1) -> Batch:
    return FeatureSource(target(), [], (-1,), Path("none")).computed([Example(each, first) for each in texts])


@cache
def plain_draft() -> PreTrainedModel:
    """A draft model of two layers that has learned to predict from the last of them only."""
    torch.manual_seed(0)
    config = llama_config(VOCAB, 2, max_position_embeddings=64)
    model = LlamaForCausalLM(config)
    return learned(SortedLesson(model, target().head, (2,)), 150)


def learned(lesson: SortedLesson, steps: int) -> PreTrainedModel:
    batch = batch_of(*(greedy_text(first, second) for first in range(VOCAB) for second in (1, 7, 3, 9)))
    optimizer = torch.optim.AdamW(lesson.model.parameters(), 5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        lesson(batch, NO_NOISE).backward()
        optimizer.step()
    return lesson.model.eval()


@pytest.mark.slow
def test_layers_behind_the_last_exit_are_not_trained() -> None:
    model = copy.deepcopy(plain_draft())
    for exits, names in (((1,), {"model.layers.1."}), ((1, 2), set[str]())):
        lesson = SortedLesson(model, target().head, exits)
        model.zero_grad()
        lesson(batch_of(greedy_text(1, 2, 6)), NO_NOISE).backward()
        others = {name for name, _ in model.named_parameters() if name.startswith(tuple(names))}
        assert lesson.trained.keys() == {name for name, _ in model.named_parameters()} - others
        assert all(each.grad is not None for each in lesson.trained.values())


@pytest.mark.slow
def test_the_loss_is_the_sum_over_all_exits() -> None:
    model, batch = plain_draft(), batch_of(greedy_text(1, 2, 6), greedy_text(4, 3, 1)[:9])
    lesson = SortedLesson(model, target().head, EXITS)
    with torch.no_grad():
        found = model(batch.tokens, output_hidden_states=True, use_cache=False)
        first = model.lm_head(model.model.norm(found.hidden_states[1]))
        losses = [
            cross_entropy(logits[:, :-1], batch.tokens[:, 1:], batch.is_token[:, 1:])
            for logits in (first, found.logits)
        ]
        assert float(lesson(batch, NO_NOISE)) == pytest.approx(float(sum(losses)), rel=1e-5)


@pytest.mark.slow
def test_sorted_training_raises_the_first_exit_and_does_not_hurt_the_last() -> None:
    others = batch_of(*(greedy_text(first, second) for first in range(VOCAB) for second in (2, 5)))
    trained = learned(SortedLesson(copy.deepcopy(plain_draft()), target().head, EXITS), 60)

    def agreement(model: PreTrainedModel, exit_layer: int) -> float:
        """The share of most probable tokens that are the target's."""
        return SortedLesson(model, target().head, (exit_layer,)).evaluation(0, [others]).agreement[0]

    assert agreement(trained, 1) > agreement(plain_draft(), 1) + 0.05
    assert agreement(trained, 2) > agreement(plain_draft(), 2) - 0.02


def accepted(draft: HFTarget, text: tuple[int, ...]) -> int:
    """How many tokens of the first greedy draft after a text are accepted."""
    parts = s2d.build(target(), draft=draft, exits=EXITS, thresholds=(0.9, 0.0), depth=STEPS)
    params = SamplingParams(0, max_tokens=STEPS + 2)
    session = Session(parts, [torch.tensor(text)], [params], LazyTargetProbs)
    first = next(step for step in session.steps() if any(step.generated))
    return len(first.generated[0]) - 1


@pytest.mark.slow
def test_agreement_is_what_decoding_accepts() -> None:
    model = copy.deepcopy(plain_draft())
    lesson, draft, counts = SortedLesson(model, target().head, EXITS), HFTarget(model), list[int]()
    first, last = lesson.exit_logits(batch_of(greedy_text(1, 2, 6)))
    sure = first.softmax(-1).amax(-1) >= 0.9
    assert sure.any() and not sure.all() and not torch.equal(first.argmax(-1), last.argmax(-1))
    for start in range(4, LENGTH - STEPS - 1):
        text = greedy_text(1, 2, 6)
        counts.append(accepted(draft, text[:start]))
        sums: Tensor = lesson.agreement(batch_of(text[: start + STEPS], first=start), STEPS)
        assert sums[0] == 1 and int(sums[2:].sum()) == counts[-1]
    assert 0 < sum(counts) < STEPS * len(counts)


def test_a_folder_names_its_exits(tmp_path: Path) -> None:
    class Loaded:
        tokenizer = None

    named("s2d").save(with_exits(copy.deepcopy(plain_draft()), (1, 2)), tmp_path, Loaded())
    again = LlamaForCausalLM.from_pretrained(tmp_path)
    assert usual_exits(HFTarget(again.eval())) == (1, 2)
