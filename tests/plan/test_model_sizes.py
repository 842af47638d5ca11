"""Sizes from configurations, against those of real models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config, MistralConfig, Qwen3MoeConfig

from outpace.models.heads.kinds import head_methods
from outpace.plan.model_sizes import head_size, model_size, open_head, read_config, skeleton, skeleton_of


def test_the_weights_of_a_model_are_those_of_its_configuration(loaded: Any) -> None:
    model = loaded[0].target.model
    real = model_size(skeleton_of(model), "float32")
    made = model_size(skeleton(model.config), "float32")
    assert made == real
    assert real.weight_bytes == 4 * sum(each.numel() for each in model.parameters())
    assert real.kv_bytes(1) * 2 == loaded[0].target.token_bytes  # of the model in float64


def test_a_tied_embedding_is_counted_once() -> None:
    size = model_size(skeleton(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100)), "bfloat16")
    layer = 32 * 3 * 32 + 32 * 32 + 2 * 4 * 32 * 32
    assert size.matrices == 2 * layer + 100 * 32 + 1024 * 32  # learned positions are a matrix too


def test_windows_and_experts_are_read() -> None:
    window = model_size(skeleton(MistralConfig(num_hidden_layers=2, sliding_window=64)), "bfloat16")
    assert [layer.window for layer in window.attention] == [64, 64]
    mixed = MistralConfig(num_hidden_layers=2, sliding_window=64)
    mixed.layer_types = ["sliding_attention", "full_attention"]
    assert [layer.window for layer in model_size(skeleton(mixed), "bfloat16").attention] == [64, None]
    experts = model_size(skeleton(Qwen3MoeConfig(num_hidden_layers=1)), "bfloat16")
    assert (experts.num_experts, experts.experts_per_token) == (128, 8)
    assert experts.expert_weights == 128 * 3 * 768 * 2048


def test_heads_have_the_sizes_of_their_kind() -> None:
    target = skeleton(read_config("zoo:target"))
    size = model_size(target, "bfloat16")
    for method in head_methods():
        head = head_size(open_head(method, target), target, size)
        assert head.weight_bytes > 0 and head.forward.matrices > 384 * 384
    eagle = head_size(open_head("eagle", target), target, size)
    assert eagle.forward.matrices > eagle.weight_bytes / 2  # the target's LM head is read too
    trained = head_size(open_head("zoo:eagle", target), target, size)
    assert trained.forward.matrices == eagle.forward.matrices and len(trained.forward.attention) == 1
    medusa = head_size(open_head("medusa", target), target, size)
    assert medusa.forward.matrices * 5 == pytest.approx(medusa.weight_bytes / 2)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("{}", 'has no "model_type"'),
        ('{"model_type": "nothing-known"}', "which transformers does not know"),
    ],
)
def test_a_file_that_is_no_configuration_is_said(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=sentence):
        read_config(str(path))
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_config(str(tmp_path / "none.json"))
