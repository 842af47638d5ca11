"""Checkpoints that are not loaded are refused in one sentence that names the fix."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from outpace.models.checkpoint import choose_device, load_checkpoint
from outpace.models.names import resolve

SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


@pytest.fixture
def folder(tmp_path):
    """A checkpoint whose tokenizer is the package's."""
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SMALL)).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        source = open(f"{resolve('zoo:draft')}/{name}", encoding="utf-8").read()
        (tmp_path / name).write_text(source, encoding="utf-8")
    return tmp_path


def test_pickled_weights_are_refused_unless_allowed(folder):
    weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="save_pretrained.*allow_pickle=True .--allow-pickle"):
        load_checkpoint(str(folder))
    model, _ = load_checkpoint(str(folder), dtype="float32", device="cpu", allow_pickle=True)
    assert torch.equal(model.state_dict()["lm_head.weight"], weights["lm_head.weight"])


def test_a_config_with_a_layer_too_few_is_refused(folder):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match="have 2 layers, but its config.json names 1"):
        load_checkpoint(str(folder), device="cpu")


@pytest.mark.parametrize(
    "kind, message",
    [
        ("t5", "encoder-decoder models are not supported"),
        ("vit", "no language model for text generation .vit."),
    ],
)
def test_models_of_another_kind_are_refused(kind, message, tmp_path):
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(str(tmp_path))


@pytest.mark.parametrize("device", ["foo", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(ValueError, match=f"there is no device {device} here: choose cpu"):
        choose_device(device)
