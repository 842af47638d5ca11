"""FSPAD: sampled features, the adapter that only the LM head sees, files and training."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.eager.captures import OutputCapture
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import kind_in, load_head, save_head
from outpace.models.heads.fspad.head import untrained_fspad
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.heads.eagle2 import eagle2
from outpace.recipes.heads.fspad import fspad
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.config import TrainConfig, changed
from outpace.training.features import Batch, FeatureSource
from outpace.training.head_methods import HeadMethod
from outpace.training.lessons.lesson import Lesson
from outpace.training.methods import named
from outpace.training.texts import Example

VOCAB = 12
PROMPT = (1, 2, 3, 4, 5, 6, 7)
BOUND = 2e-6  # of confidences, which are float32
SMALL: dict[str, Any] = {"depth": 3, "width": 3, "num_nodes": 8}


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


def steps_of(parts: Parts, prompt: tuple[int, ...] = PROMPT, max_tokens: int = 20) -> list[Step]:
    params = SamplingParams(0.0, max_tokens=max_tokens)
    session = Session(parts, [torch.tensor(prompt)], [params], LazyTargetProbs)
    return [step for step in session.steps() if step.generated[0]]


def trees(steps: list[Step]) -> list[tuple[list[int], tuple[int, ...], list[float]]]:
    """Of each step's draft the tokens, the parents and the logarithms of the draft probabilities."""
    drafts = [step.draft.tree for step in steps]
    confidences = [[] if tree.confidence is None else tree.confidence.tolist() for tree in drafts]
    return [
        (tree.tokens.tolist(), tree.forest.parents, each)
        for tree, each in zip(drafts, confidences, strict=True)
    ]


def test_without_gated_features_and_adapter_the_drafts_are_those_of_eagle2() -> None:
    head: Any = untrained_fspad(target(), seed=5)
    eagle = untrained_eagle(target())
    eagle.load_state_dict(head.state_dict(), strict=False)
    usual = trees(steps_of(eagle2.build(target(), head=HeadModel(eagle), **SMALL)))
    assert trees(steps_of(fspad.build(target(), head=HeadModel(head), **SMALL))) != usual
    with torch.no_grad():
        for added in (head.sampling.down, head.norm.change):
            added.weight.zero_()
    assert trees(steps_of(fspad.build(target(), head=HeadModel(head), **SMALL))) == usual


def plain_log_probs(head: Any, text: list[int], drafted: list[int], weights: dict[str, Any]) -> list[float]:
    """The logarithms of the draft probabilities of a chain after `text`, without a cache and from the tensors
    of the head's file: each token reads the feature that the one before it gave."""
    count = target().num_layers
    with OutputCapture(target().model, count).capture(frozenset({-1}), True) as found:
        target().model(torch.tensor([text]), use_cache=False)
    features, found_log_probs = found[-1][0, : len(text) - 1], []
    for index, token in enumerate(drafted):
        read = torch.tensor([*text, *drafted[:index]])[1:]
        embedded = target().embed(read)
        gate = embedded @ weights["sampling.gate.weight"].T
        wide = gate / (1 + (-gate).exp()) * (features @ weights["sampling.up.weight"].T)
        sampled = wide @ weights["sampling.down.weight"].T + features
        states = torch.cat((embedded, sampled), -1)[None] @ weights["fc.weight"].T
        positions = torch.arange(len(read))[None]
        mask = torch.ones(len(read), len(read), dtype=torch.bool).tril()[None, None]
        angles = head.rotary_emb(states, position_ids=positions)
        state = head.layers[0](states, attention_mask=mask, position_embeddings=angles)[0, -1:]
        features = torch.cat((features, state))
        logits = target().head(state + state @ weights["norm.change.weight"].T)
        found_log_probs.append(float(logits[0].log_softmax(-1)[token]))
    return found_log_probs


@torch.no_grad()
def test_drafts_are_those_of_the_formula_and_the_adapter_stays_out_of_the_recurrence(tmp_path: Path) -> None:
    head: Any = untrained_fspad(target(), seed=4)
    save_head(head, tmp_path, target())
    weights = {name: tensor.double() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    assert weights["sampling.up.weight"].shape == (head.config.intermediate_size, head.config.hidden_size)
    plain = copy.deepcopy(head)
    plain.config._attn_implementation = "sdpa"
    mistaken = copy.deepcopy(head)
    mistaken.state_layer = -1  # feeds what the LM head reads back
    chain = {"depth": 3, "width": 1, "num_nodes": 3}
    for drafting, is_right in ((head, True), (mistaken, False)):
        step = steps_of(fspad.build(target(), head=HeadModel(drafting), **chain), max_tokens=5)[0]
        ((root, *drafted), _, (_, *log_probs)) = trees([step])[0]
        assert root == PROMPT[-1] and len(drafted) == 3
        expected = plain_log_probs(plain, list(PROMPT), drafted, weights)
        errors = [abs(one - other) for one, other in zip(log_probs, expected, strict=True)]
        assert errors[0] < BOUND and (max(errors) < BOUND) == is_right


def test_a_head_is_read_as_it_was_written_and_fits_its_target_alone(tmp_path: Path) -> None:
    head = begun("fspad", seed=4, changes=["head.num_layers=2"]).double()
    save_head(head, tmp_path, target())
    kind = kind_in(tmp_path)
    assert kind is not None and kind.method == "fspad"
    again: Any = load_head("fspad", tmp_path, target())
    assert len(again.layers) == 2 and again.state_layer == 1
    assert all(torch.equal(again.own[name], weight) for name, weight in head.own.items())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 24}))
    with pytest.raises(HeadFileError, match=r"hidden states of 24 numbers, and this target's have 16: give"):
        load_head("fspad", tmp_path, target())


def settings(method: str, changes: list[str]) -> tuple[HeadMethod, TrainConfig]:
    trains = named(method)
    assert isinstance(trains, HeadMethod)
    return trains, changed(trains.defaults(), ["head.noise=0", *changes])


def begun(method: str, *, seed: int = 0, changes: list[str] | None = None) -> DraftHead:
    """A head as training begins with it."""
    trains, config = settings(method, [f"seed={seed}", *(changes or [])])
    head = trains.new(target(), config, None)
    assert isinstance(head, DraftHead)
    return head


def lesson_of(head: DraftHead, changes: list[str]) -> Lesson:
    trains, config = settings(head.method, changes)
    return trains.lesson(head, target(), config)


@cache
def batch() -> Batch:
    prompts = [(first, second) for first in range(VOCAB) for second in (1, 7)]
    params = [SamplingParams(0.0, max_tokens=16)] * len(prompts)
    read = texts(autoregressive.build(target()), prompts, params)
    examples = [Example((*prompt, *text), 2) for prompt, text in zip(prompts, read, strict=True)]
    return FeatureSource(target(), examples, [-1], Path("none")).batch(list(range(len(examples))))


def test_training_begins_as_eagles_and_the_distance_of_features_leaves_the_adapter_alone() -> None:
    losses = [lesson_of(begun(name), [])(batch(), torch.Generator()).item() for name in ("eagle", "fspad")]
    assert losses[0] == losses[1]
    head: Any = begun("fspad")
    torch.nn.init.normal_(head.norm.change.weight, std=0.1)
    torch.nn.init.normal_(head.sampling.down.weight, std=0.1)
    gradients = {}
    for name, weights in (
        ("features", ["head.token_weight=0"]),
        ("tokens", ["head.feature_weight=0"]),
    ):
        head.zero_grad()
        lesson_of(head, weights)(batch(), torch.Generator()).backward()
        gradients[name] = {key: float(each.grad.abs().max()) for key, each in head.own.items()}
    assert gradients["features"].pop("norm.change.weight") == 0 < min(gradients["features"].values())
    assert min(gradients["tokens"].values()) > 0  # token probabilities teach the features too


def test_all_weights_learn_and_the_head_agrees_more() -> None:
    head = begun("fspad")
    lesson: Any = lesson_of(head, [])
    before = {name: weight.detach().clone() for name, weight in head.own.items()}
    untrained = lesson.evaluation(0, [batch()])
    optimizer, losses = torch.optim.Adam(head.own.values(), lr=3e-3), list[float]()
    for _ in range(40):
        loss = lesson(batch(), torch.Generator())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.6 * losses[0]
    assert not any(torch.equal(weight, before[name]) for name, weight in head.own.items())
    trained = lesson.evaluation(40, [batch()])
    assert trained.agreement[0] > untrained.agreement[0] + 0.2
