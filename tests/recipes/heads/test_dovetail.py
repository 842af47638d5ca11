"""Dovetail: the gated fusion, its files and training, and a head on another device than the target."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from outpace.controllers.adaptive_tree import AdaptiveTree
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.heads.dovetail.head import untrained_dovetail
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import kind_in, load_head, save_head
from outpace.models.heads.head_model import HeadModel, copy_on
from outpace.models.heads.self_check import self_check
from outpace.models.hf.target import HFTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.heads.dovetail import dovetail
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.config import changed
from outpace.training.features import FeatureSource
from outpace.training.head_methods import HeadMethod
from outpace.training.methods import named
from outpace.training.texts import Example
from tests.other_device import AWAY, moved_head, sent, simulated

VOCAB = 12
PROMPT = (1, 2, 3, 4, 5, 6, 7)
GREEDY = SamplingParams(0.0, max_tokens=20)


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


def decode(parts: Parts) -> tuple[list[int], int, int]:
    """The greedy text, and the numbers of steps and of draft tokens."""
    session = Session(parts, [torch.tensor(PROMPT)], [GREEDY], LazyTargetProbs)
    steps = [step for step in session.steps() if step.generated[0]]
    text = [token for step in steps for token in step.generated[0]]
    return text, len(steps), sum(len(step.draft.tree) - 1 for step in steps)


def test_features_and_embeddings_are_mixed_by_the_papers_formula(tmp_path: Path) -> None:
    """From the tensors of its file."""
    head: Any = untrained_dovetail(target(), seed=4)
    with torch.no_grad():
        head.fusion.norm.weight.normal_(1, 0.3)
    save_head(head, tmp_path, target())
    stored = {name: tensor.double() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    size, eps = head.config.hidden_size, head.config.rms_norm_eps
    feature, embedded = torch.randn(2, 5, size, dtype=torch.float64)
    normed = embedded / (embedded.square().mean(-1, keepdim=True) + eps).sqrt() * stored["fusion.norm.weight"]
    h1 = feature @ stored["fusion.feature.weight"].T
    h2 = normed @ stored["fusion.embedding.weight"].T
    h2 = h2 / (1 + (-h2).exp())
    gate = 1 / (1 + (-torch.cat((h1, h2), -1) @ stored["fusion.gate.weight"].T).exp())
    found = head.combined(embedded[None], feature[None])["hidden_states"][0]
    assert (found - (gate * h1 + (1 - gate) * h2)).abs().max() < 1e-6  # norms compute in float32
    assert head.fusion.gate.weight.shape == (size, 2 * size) and len(head.layers) == 2


def test_a_head_is_read_as_it_was_written_and_fits_its_target_alone(tmp_path: Path) -> None:
    head: Any = untrained_dovetail(target(), seed=4, num_layers=3)
    save_head(head, tmp_path, target())
    kind = kind_in(tmp_path)
    assert kind is not None and kind.method == "dovetail"
    again: Any = load_head("dovetail", tmp_path, target())
    assert len(again.layers) == 3
    assert all(torch.equal(again.own[name], weight) for name, weight in head.own.items())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 24}))
    with pytest.raises(HeadFileError, match=r"hidden states of 24 numbers, and this target's have 16: give"):
        load_head("dovetail", tmp_path, target())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(HeadFileError, match=r"has layers\.2\.input_layernorm"):
        load_head("dovetail", tmp_path, target())


def test_a_head_with_nan_weights_is_named() -> None:
    head: Any = untrained_dovetail(target())
    with torch.no_grad():
        head.fusion.gate.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="the draft model gave NaN or infinite logits: load it in another"):
        decode(dovetail.build(target(), head=HeadModel(head)))


def test_all_weights_learn_and_the_head_agrees_more(tmp_path: Path) -> None:
    method = named("dovetail")
    assert isinstance(method, HeadMethod)
    config = changed(method.defaults(), ["head.noise=0.2"])
    assert config.head.num_layers == 5
    drafter: Any = method.new(target(), changed(config, ["head.num_layers=2"]), None)
    lesson = method.lesson(drafter, target(), config)
    prompts = [(first, second) for first in range(VOCAB) for second in (1, 7)]
    params = [SamplingParams(0.0, max_tokens=16)] * len(prompts)
    read = texts(autoregressive.build(target()), prompts, params)
    examples = [Example((*prompt, *text), 2) for prompt, text in zip(prompts, read, strict=True)]
    batch = FeatureSource(target(), examples, lesson.layers, tmp_path).batch(list(range(len(examples))))
    weights = list(drafter.own.values())
    frozen = [weight.clone() for weight in (*target().embed.parameters(), *target().head.parameters())]
    before = [weight.clone() for weight in weights]
    optimizer, losses = torch.optim.Adam(weights, lr=3e-3), list[float]()
    text = [*prompts[0], *read[0], *read[1], *read[2]]
    untrained = self_check(target(), drafter.double(), text)
    drafter.float()
    for _ in range(40):
        loss = lesson(batch, torch.Generator().manual_seed(0))
        optimizer.zero_grad()
        loss.backward()
        assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in weights)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.6 * losses[0]
    assert not any(torch.equal(*pair) for pair in zip(before, weights, strict=True))
    after = [*target().embed.parameters(), *target().head.parameters()]
    assert all(torch.equal(*pair) for pair in zip(frozen, after, strict=True))
    trained = self_check(target(), drafter.double(), text)
    assert trained.first > untrained.first + 0.2 and not trained.findings


def test_the_size_of_trees_is_measured_or_given() -> None:
    head = HeadModel(untrained_dovetail(target()))
    usual, fixed = dovetail.build(target(), head=head), dovetail.build(target(), head=head, adaptive=False)
    assert isinstance(usual.controller, AdaptiveTree) and isinstance(fixed.controller, Fixed)
    text, steps, drafted = decode(dovetail.build(target(), head=head, adaptive=False, num_nodes=16, depth=3))
    assert text == decode(autoregressive.build(target()))[0]
    assert drafted > 14 * (steps - 2), "trees of 16 nodes but in the last steps"


@pytest.mark.slow
def test_on_two_devices_ids_and_features_cross_and_texts_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The head is elsewhere, on a device that cannot meet the host's tensors."""
    model: Any = transformers_models(vocab=200).target  # so many that their logits would be noticed
    depth, width = 3, 3
    options: dict[str, Any] = {"adaptive": False, "num_nodes": 8, "depth": depth, "width": width}
    head = HeadModel(untrained_dovetail(model))
    expected = decode(dovetail.build(model, head=head, **options))
    elsewhere, there = simulated(monkeypatch), moved_head(head)
    assert there.model.device == AWAY and head.model.device.type == "cpu"
    sent.clear()
    with elsewhere:
        assert decode(dovetail.build(model, head=there, **options)) == expected
    text, steps, _ = expected
    nodes = 1 + (depth - 1) * width  # that the head reads in a step, each followed by `width` tokens
    features = 8 * head.head.feature_size * (len(PROMPT) + len(text) - 2)
    # with each node its token, position and place in the cache; back come tokens, their probabilities, and
    # the largest logit, which shows whether there is a NaN
    assert features <= sent["there"] <= features + steps * nodes * 3 * 8
    assert 0 < sent["here"] <= steps * (nodes * width * 16 + 16)


def test_a_head_on_another_device_is_a_copy_with_embedding_and_lm_head() -> None:
    opened = HeadModel(untrained_dovetail(target()))
    assert opened.on(torch.device("cpu")) is opened and opened.on(torch.device("cpu:0")) is opened
    made = copy_on(opened.head, torch.device("cpu"))
    for mine, shared in ((made.embed_tokens, target().embed), (made.lm_head, target().head)):
        assert isinstance(mine, nn.Embedding | nn.Linear) and mine is not shared
        assert torch.equal(mine.weight, next(shared.parameters()))
    assert made.is_for(target())
    assert decode(dovetail.build(target(), head=HeadModel(made), adaptive=False)) == decode(
        dovetail.build(target(), head=opened, adaptive=False)
    )
    with pytest.raises(
        ValueError, match="there is no device cuda:7 for the head: use cpu, auto, or the name"
    ):
        dovetail.build(target(), head=opened, head_device="cuda:7")
    with pytest.raises(ValueError, match="there is no device gpu for the head"):
        dovetail.build(target(), head=opened, head_device="gpu")
