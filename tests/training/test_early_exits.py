"""LayerSkip's training: which layers are dropped, what each exit counts, and what is learned."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from transformers import LlamaForCausalLM

from outpace.core.tree import Forest, TokenTree
from outpace.models.hf.target import HFTarget
from outpace.models.skip_set import SkipSet
from outpace.models.slim.exit_head import ExitHead
from outpace.models.slim.make import drafting_layers, without
from outpace.proof.models import transformers_models
from outpace.training.config import ConfigError, EarlyExits, TrainConfig, changed
from outpace.training.exit_methods import check_learned_exits
from outpace.training.features import Batch, FeatureSource
from outpace.training.lessons.early_exits import EarlyExitLesson, drop_rate, exit_layer, exit_weight
from outpace.training.methods import named
from outpace.training.texts import Example
from tests.llama import llama_config

VOCAB = 12
TEXTS = [Example(tuple((index * step + step) % VOCAB for index in range(14)), 2) for step in (1, 5, 7)]


def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


def lesson_of(model, **settings) -> EarlyExitLesson:
    return EarlyExitLesson(model, copy.deepcopy(model.get_output_embeddings()), EarlyExits(**settings))


def batch_of(made: HFTarget) -> Batch:
    return FeatureSource(made, TEXTS, (-1,), None).computed(TEXTS)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text", "opt"])
def test_an_exit_head_gives_what_a_shorter_model_gives(name, request) -> None:
    from tests.models.conftest import build

    model = build(name)
    made = HFTarget(model)
    slim = without(made, SkipSet.after(1, 2))
    text = torch.tensor([5, 9, 31, 7])
    cache = slim.open(1, 16)
    logits = slim.score(TokenTree(text, Forest.chain((3,))), (0,), cache).logits
    with torch.no_grad():
        states = model(text[None], output_hidden_states=True, use_cache=False).hidden_states[1]
        assert (ExitHead(model)(states)[0] - logits).abs().max() < 1e-5


def test_later_layers_are_dropped_more_often_and_the_first_never() -> None:
    rates = [drop_rate(layer, 8, 0.2) for layer in range(8)]
    assert rates[0] == 0 and rates[7] == pytest.approx(0.2)
    assert rates[3] == pytest.approx(0.2 * (2 ** (3 / 7) - 1))
    assert drop_rate(0, 1, 0.2) == 0


def test_losses_count_more_the_later_the_exit() -> None:
    weights = [exit_weight(layer, 5, EarlyExits(scale=0.2)) for layer in range(5)]
    assert weights == pytest.approx([0.0, 0.2, 0.6, 1.2, 4 + 0.2 * 6])
    uniform = EarlyExits(scale=0.2, weighting="uniform")
    assert [exit_weight(layer, 5, uniform) for layer in range(5)] == [0.2, 0.2, 0.2, 0.2, 1.0]


def test_layers_are_dropped_for_each_text_apart() -> None:
    made = target()
    lesson = lesson_of(copy.deepcopy(made.model), dropout=0.5)
    batch = batch_of(made)
    dropped = torch.tensor([[False, True, False], [True, True, False]])
    states, _ = lesson._run(batch, dropped)
    embedded = lesson.model.get_input_embeddings()(batch.tokens)
    whole, _ = lesson._run(batch)
    assert torch.equal(states[0][1], embedded[1])
    assert torch.equal(states[0][0], whole[0][0]) and not torch.equal(states[0][0], embedded[0])
    assert torch.equal(states[1][0], states[0][0]) and torch.equal(states[1][1], embedded[1])
    assert torch.equal(states[1][2], whole[1][2])
    often = torch.stack([lesson._dropped(3, torch.Generator().manual_seed(seed)) for seed in range(400)])
    assert not often[:, 0].any()
    assert often[:, 1].double().mean() == pytest.approx(0.5, abs=0.05)
    assert (often[:, 1, 0] != often[:, 1, 1]).any()


def test_the_loss_is_the_weighted_sum_of_its_exits() -> None:
    made = target()
    lesson = lesson_of(copy.deepcopy(made.model), dropout=0.0, rotation=1, scale=1.0)
    batch = batch_of(made)
    states, logits = lesson._run(batch)
    losses = [
        torch.nn.functional.cross_entropy(each[:, :-1].flatten(0, 1), batch.tokens[:, 1:].flatten())
        for each in (ExitHead(made.model)(states[0]), logits)
    ]
    # of two layers the first exit has weight 0
    assert lesson(batch, torch.Generator()).item() == pytest.approx(losses[1].item())
    assert math.isfinite(losses[0].item())
    uniform = lesson_of(copy.deepcopy(made.model), dropout=0.0, rotation=1, scale=0.5, weighting="uniform")
    expected = (0.5 * losses[0] + losses[1]) / 1.5
    assert uniform(batch, torch.Generator()).item() == pytest.approx(expected.item())


def test_exits_can_learn_the_distribution_of_the_target_before_training() -> None:
    made = target()
    batch = batch_of(made)
    settings = {"dropout": 0.0, "rotation": 1, "weighting": "uniform", "labels": "target"}
    lesson = lesson_of(copy.deepcopy(made.model), scale=0.5, **settings)
    states, logits = lesson._run(batch)
    log_p = made.model(batch.tokens).logits[:, :-1].log_softmax(-1)
    log_q = ExitHead(made.model)(states[0])[:, :-1].log_softmax(-1)
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1).mean().item()
    # the whole model is the target still: its share of the loss is 0
    assert divergence > 0.01
    assert lesson(batch, torch.Generator()).item() == pytest.approx(0.5 * divergence / 1.5, rel=1e-4)
    with torch.no_grad():
        lesson.model.get_output_embeddings().weight.mul_(0.5)
    changed_log_q = lesson.model(batch.tokens).logits[:, :-1].log_softmax(-1)
    alone = lesson_of(lesson.model, scale=1e-9, **settings)
    alone._target_head = lesson._target_head
    expected = (log_p.exp() * (log_p - changed_log_q)).sum(-1).mean().item()
    assert alone(batch, torch.Generator()).item() == pytest.approx(expected, rel=1e-4)


def test_only_the_exits_of_the_settings_are_learned() -> None:
    """In a step of two exits one is learned, in turn; the exit after three layers is not."""
    torch.manual_seed(0)
    made = HFTarget(LlamaForCausalLM(llama_config(VOCAB, 4, max_position_embeddings=64)).eval())
    lesson = lesson_of(made.model, layers=(1, 2), rotation=2, scale=1.0, dropout=0.0, weighting="uniform")
    batch = batch_of(made)
    after = [lesson._loss(lesson._head[0](each), batch).item() for each in lesson._run(batch)[0]]
    found = {round(lesson(batch, torch.Generator().manual_seed(seed)).item(), 4) for seed in range(20)}
    assert found == {round((after[0] + after[3]) / 2, 4), round((after[1] + after[3]) / 2, 4)}


@pytest.mark.slow
def test_training_teaches_the_exit_and_leaves_the_target_as_it_is() -> None:
    torch.manual_seed(0)
    config = llama_config(VOCAB, 4, max_position_embeddings=64)
    made = HFTarget(LlamaForCausalLM(config).eval())
    before = copy.deepcopy(made.model.state_dict())

    class Loaded:
        target = made

    model = named("layerskip").untrained(Loaded(), changed(named("layerskip").defaults(), ["exits.layer=2"]))
    assert drafting_layers(made) == 1 and drafting_layers(HFTarget(model)) == 2
    lesson = lesson_of(model, layer=2, rotation=2, scale=1.0)
    batch = batch_of(made)
    first = lesson.evaluation(0, [batch])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(120):
        optimizer.zero_grad()
        lesson(batch, torch.Generator().manual_seed(step)).backward()
        optimizer.step()
    last = lesson.evaluation(120, [batch])
    assert last.acceptance_length > first.acceptance_length + 1 and last.acceptance > 0.7
    assert all(torch.equal(before[name], each) for name, each in made.model.state_dict().items())
    kept = sum(each.numel() for layer in model.model.layers[:2] for each in layer.parameters())
    skipped = sum(each.numel() for layer in model.model.layers[2:] for each in layer.parameters())
    assert (
        kept == skipped and lesson.num_draft_parameters == sum(p.numel() for p in model.parameters()) - kept
    )


def test_unsuited_settings_are_refused() -> None:
    assert exit_layer(EarlyExits(), 8) == 2 and exit_layer(EarlyExits(), 2) == 1
    assert exit_layer(EarlyExits(layer=3), 8) == 3
    assert exit_layer(EarlyExits(layers=(3, 4)), 8) == 3 and exit_layer(EarlyExits(layers=(1, 2)), 8) == 2
    for layers in ((2,), (1, 1), (0, 1)):
        with pytest.raises(ConfigError, match="from 1 to 1"):
            check_learned_exits(layers, target())
    with pytest.raises(ConfigError, match="use sum or uniform"):
        changed(TrainConfig(), ["exits.weighting=late"])
    with pytest.raises(ConfigError, match="use text or target"):
        changed(TrainConfig(), ["exits.labels=teacher"])

    class Loaded:
        target = target()

    with pytest.raises(ConfigError, match="exits.layer is 2: a target of 2 layers has exits 1 to 1"):
        named("layerskip").untrained(Loaded(), changed(named("layerskip").defaults(), ["exits.layer=2"]))
    with pytest.raises(ConfigError, match="exits.rotation 1 or more"):
        changed(TrainConfig(), ["exits.rotation=0"])
    with pytest.raises(ConfigError, match="trains the target itself: leave out draft"):
        named("layerskip").check_start("zoo:draft", None)
