"""Chimera: what a drafted token sees, its files and its training. That its drafts are those of forwards over
whole texts is tested with those of other heads (tests/drafters/test_feature_drafter.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from outpace.api.model import Model
from outpace.models.heads.chimera.head import ChimeraHead, untrained_chimera
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import kind_in, load_head, save_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.self_check import self_check
from outpace.proof.decode_all import texts
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.heads.chimera import chimera
from outpace.training.config import changed
from outpace.training.features import FeatureSource
from outpace.training.methods import named
from outpace.training.texts import Example
from tests.recipes.heads.position_heads import GREEDY, VOCAB, hidden_states, plain, small, steps_of

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def untrained(seed: int = 2) -> ChimeraHead:
    head = untrained_chimera(small(), seed)
    assert isinstance(head, ChimeraHead)
    return head


@torch.no_grad()
def logits_after(head: ChimeraHead, tokens: list[int], features: Tensor) -> Tensor:  # (T,), (T - 1, 4D)
    """By a forward over a whole text without a KV cache."""
    read, places = torch.tensor([tokens[1:]]), torch.arange(len(tokens) - 1)
    return head(read, places[None], features=features[None], use_cache=False).logits[0, -1]


@torch.no_grad()
def features_of(head: ChimeraHead, tokens: list[int]) -> Tensor:  # -> (T - 1, 4D)
    read = torch.tensor(tokens[:-1])
    return head.with_tokens(hidden_states(read), read, torch.cat((read[:1], read[:-1])))


def test_the_input_is_the_trigram_and_the_output_joins_the_verified_state(tmp_path: Path) -> None:
    """With a layer that adds nothing, from the tensors of its file; text's first token is repeated."""
    head: Any = untrained()
    with torch.no_grad():
        head.layers[0].self_attn.o_proj.weight.zero_()
        head.layers[0].mlp.down_proj.weight.zero_()
        head.trigram.block.layers[0].bias.normal_()
    save_head(head, tmp_path, small())
    stored = {name: tensor.double() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    for count in (2, 3, 7):
        trigram = torch.tensor([TEXT[max(0, count - back)] for back in (3, 2, 1)])
        joined = small().embed(trigram).flatten().detach()
        inner = stored["trigram.block.layers.0.weight"] @ joined + stored["trigram.block.layers.0.bias"]
        vector = stored["trigram.linear.weight"] @ (joined + inner / (1 + (-inner).exp()))
        both = torch.cat((hidden_states(torch.tensor(TEXT[: count - 1]))[-1], vector))
        found = logits_after(head, TEXT[:count], features_of(head, TEXT[:count]))
        assert (found - stored["lm_head.weight"] @ both).abs().max() < 1e-9


def test_a_token_attends_to_the_states_before_it_and_to_no_trigram() -> None:
    head, features = untrained(), features_of(untrained(), TEXT)
    before = logits_after(head, TEXT, features)
    size = features.shape[1] // 4
    for place in range(len(TEXT) - 1):
        for part in range(4):
            other = features.clone()
            other[place, part * size : (part + 1) * size] += 1
            is_read = part == 0 or place == len(TEXT) - 2  # only the newest one's other parts
            assert torch.equal(logits_after(head, TEXT, other), before) != is_read
    # an earlier token is in no trigram of the last one, and its key and value are those of a state
    assert torch.equal(logits_after(head, [*TEXT[:4], 11, *TEXT[5:]], features), before)


@pytest.mark.parametrize("tree", ["static", "chain"])
def test_drafts_are_exact_and_of_the_shape_that_was_asked_for(tree: str) -> None:
    parts = chimera.build(small(), head=HeadModel(untrained()), tree=tree, num_nodes=20, depth=3)
    generated, steps = steps_of(parts)
    assert generated == plain(small())
    drafted = max((step.draft.tree for step in steps), key=len)
    forest = drafted.forest
    assert max(forest.depths) == 3 and len(forest) - forest.num_rows <= (60 if tree == "static" else 9)
    assert any(len(new) > 1 for step in steps for new in step.generated)
    if tree == "static":  # other branches change nothing: two nodes of one token have candidates of their own
        tokens = drafted.tokens.tolist()
        best = {tokens[forest.children[node][0]] for node in forest.children[0] if forest.children[node]}
        assert len(best) > 1


def test_a_head_is_read_as_it_was_written_and_fits_its_target_alone(tmp_path: Path) -> None:
    head = untrained()
    save_head(head, tmp_path, small())
    kind = kind_in(tmp_path)
    assert kind is not None and kind.method == "chimera"
    again = load_head("chimera", tmp_path, small())
    assert isinstance(again, ChimeraHead) and again.own.keys() == head.own.keys()
    assert all(torch.equal(again.own[name], weight) for name, weight in head.own.items())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 24}))
    with pytest.raises(HeadFileError, match=r"hidden states of 24 numbers, and this target's have 16: give"):
        load_head("chimera", tmp_path, small())


def lesson_and_batch(first: int, *read: list[int]) -> tuple[Any, Any]:
    method: Any = named("chimera")
    config = changed(method.defaults(), ["head.unroll=2", "head.feature_weight=0.5"])
    lesson = method.lesson(method.untrained(Model("target", small()), config), small(), config)
    examples = [Example(tuple(each), first) for each in read]
    return lesson, FeatureSource(small(), examples, lesson.layers, Path("none")).batch(range(len(read)))


def test_before_training_it_has_the_targets_logits_of_both_halves() -> None:
    lesson, _ = lesson_and_batch(2, TEXT)
    head = lesson.head.double()
    with torch.no_grad():
        head.layers[0].self_attn.o_proj.weight.zero_()
        head.layers[0].mlp.down_proj.weight.zero_()
        head.trigram.linear.weight.zero_()
    found = logits_after(head, TEXT, features_of(head, TEXT))
    expected = small().head(hidden_states(torch.tensor(TEXT[:-1]))[-1])
    assert (found - expected).abs().max() < 1e-6  # the LM head was copied in float32


def test_the_loss_is_that_of_tokens_and_of_states() -> None:
    lesson, batch = lesson_and_batch(5, TEXT)
    head, hidden, size = (
        lesson.head.double(),
        hidden_states(torch.tensor(TEXT)),
        small().embed.weight.shape[1],
    )
    sums = [[list[float](), list[float]()] for _ in range(2)]
    outputs: list[Tensor] = []
    hook = head.layers[0].register_forward_hook(lambda module, given, output: outputs.append(output[0, -1]))
    for column in range(len(TEXT) - 2):
        features = features_of(head, TEXT[: column + 2])
        for step in range(2):
            if (label := column + 2 + step) < len(TEXT):
                log_q = logits_after(head, TEXT[:label], features).log_softmax(-1)
                features = torch.cat((features, outputs[-1][None]))
                if label >= 5:
                    p = small().head(hidden[label - 1]).softmax(-1).detach()
                    sums[step][0].append(-float((p * log_q).sum()))
                    sums[step][1].append(float((outputs[-1][:size] - hidden[label - 1]).square().mean()))
    hook.remove()
    means = [[sum(each) / len(each) for each in of_step] for of_step in sums]
    expected = sum(tokens + 0.5 * states for tokens, states in means)
    assert lesson(batch, torch.Generator()).item() == pytest.approx(expected, rel=1e-5)


def test_all_weights_learn_and_the_head_agrees_more() -> None:
    prompts = [[first, second] for first in range(VOCAB) for second in (1, 7)]
    greedy = texts(autoregressive.build(small()), prompts, GREEDY[:1] * len(prompts))
    read = [[*prompt, *text] for prompt, text in zip(prompts, greedy, strict=True)]
    lesson, batch = lesson_and_batch(2, *read)
    before = lesson.evaluation(0, [batch]).agreement
    weights, frozen = list(lesson.trained.values()), next(small().embed.parameters()).clone()
    optimizer = torch.optim.Adam(weights, lr=5e-3)
    for step in range(40):
        loss = lesson(batch, torch.Generator())
        optimizer.zero_grad()
        loss.backward()
        assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in weights), step
        optimizer.step()
    after = lesson.evaluation(1, [batch]).agreement
    assert after[0] > before[0] + 0.2 and after[1] > 0.1
    assert torch.equal(next(small().embed.parameters()), frozen)
    assert not self_check(small(), lesson.head.double(), read[0] + read[1] + read[2]).findings
