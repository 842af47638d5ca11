"""SpecEE's predictor learns after which layers the most probable token is already the last layer's."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.hf.target import HFTarget
from outpace.models.predictors.exits.lesson import ExitLesson
from outpace.models.predictors.exits.predictor import untrained_exit_predictor
from outpace.training.config import TrainConfig
from outpace.training.features import FeatureSource
from outpace.training.methods import named
from outpace.training.predictor_methods import Judged
from outpace.training.texts import Example

LAYERS, VOCAB, FIRST = 4, 12, 3
TEXTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [2, 7, 1, 8, 2, 8, 1]]


@cache
def target() -> HFTarget:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(vocab_size=VOCAB, num_hidden_layers=LAYERS, initializer_range=0.4, **shape)
    return HFTarget(LlamaForCausalLM(config).eval())


def made() -> tuple[ExitLesson, DraftHead]:
    head = untrained_eagle(target(), seed=1)
    drafter = Judged(untrained_exit_predictor(target(), seed=2), head)
    found = named("specee").lesson(drafter, target(), TrainConfig())
    assert isinstance(found, ExitLesson)
    return found, head


@torch.no_grad()
def hand_computed(found: ExitLesson, head: DraftHead) -> tuple[float, list[tuple[int, bool]]]:
    """The loss, and by layer and token whether the layer's most probable token is the last one's."""
    model, norm = target().model, target().model.model.norm
    losses: list[list[Tensor]] = [[] for _ in range(LAYERS - 1)]
    labels: list[tuple[int, bool]] = []
    for text in TEXTS:
        states = model(torch.tensor([text]), output_hidden_states=True, use_cache=False).hidden_states
        for token in range(FIRST - 1, len(text) - 1):  # the tokens after them are the target's
            # the head reads the text up to this token, each token with the state before it
            read, places = torch.tensor([text[1 : token + 1]]), torch.arange(token)[None]
            ids = head(read, places, features=states[-1][:, :token]).logits[0, -1].topk(4).indices
            final = int(model.lm_head(states[-1][0, token]).argmax())
            before = torch.zeros(4)
            for layer in range(1, LAYERS):
                logits = model.lm_head(norm(states[layer][0, token]))
                probs = logits[ids].softmax(-1)
                given = torch.cat((logits[ids], probs, probs - before))[None]
                is_final, before = int(logits.argmax()) == final, probs
                prediction = found.predictor.log_odds(given, layer).sigmoid()
                losses[layer - 1].append(binary_cross_entropy(prediction, torch.tensor([is_final]).double()))
                labels.append((layer, is_final))
    return float(torch.stack([torch.stack(each).mean() for each in losses]).mean()), labels


def test_the_loss_is_the_mean_over_layers_of_the_cross_entropy_with_the_last_layers_choice() -> None:
    found, head = made()
    examples = [Example(tuple(text), FIRST) for text in TEXTS]
    batch = FeatureSource(target(), examples, found.layers, Path("none")).batch([0, 1])
    expected, labels = hand_computed(found, head)
    assert 0.1 < sum(is_final for _, is_final in labels) / len(labels) < 0.9
    assert found(batch, torch.Generator()).item() == pytest.approx(expected, rel=1e-4)


def test_the_loss_reaches_the_predictor_alone() -> None:
    found, head = made()
    examples = [Example(tuple(text), FIRST) for text in TEXTS]
    found(
        FeatureSource(target(), examples, found.layers, Path("none")).batch([0, 1]), torch.Generator()
    ).backward()
    assert all(each.grad is not None and each.grad.abs().max() > 0 for each in found.predictor.parameters())
    assert all(each.grad is None for each in (*head.parameters(), *target().model.parameters()))
