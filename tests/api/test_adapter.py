"""Adapters load with the checkpoint that they name, merged into its weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import outpace
from outpace.models import adapter
from outpace.models.checkpoint import load_checkpoint, load_tokenizer
from outpace.models.slim.make import drafting_layers

PROMPT = "for index in range(10):\n    print(index)\nfor"


@pytest.fixture(scope="module")
def folder(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that changes the tiny target."""
    path = tmp_path_factory.mktemp("adapter") / "changes"
    model, _ = load_checkpoint(tiny.target, dtype="float64", device="cpu")
    changed = adapter.with_low_rank_changes(model, tiny.target, 3)
    noise = torch.Generator().manual_seed(0)
    for name, each in changed.named_parameters():
        assert each.requires_grad == ("lora_" in name)
        if "lora_B" in name:
            each.data = 0.1 * torch.randn(each.shape, generator=noise, dtype=torch.float64)
    adapter.save_adapter(changed, path)
    return path


def weights(name: str) -> dict[str, torch.Tensor]:
    return load_checkpoint(name, dtype="float64", device="cpu")[0].state_dict()


def test_low_rank_changes_are_added_to_the_weights(folder: Path, tiny: Any) -> None:
    from safetensors.torch import load_file

    before, after = weights(tiny.target), weights(str(folder))
    factors = load_file(folder / adapter.WEIGHTS)
    assert before.keys() == after.keys()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(changed) == len(factors) // 2 > 0 and not any("lm_head" in name for name in changed)
    for name in changed:
        a, b = (
            factors[f"{adapter.IN_FILES}{name.removesuffix('weight')}lora_{which}.weight"] for which in "AB"
        )
        assert torch.allclose(after[name], before[name] + b @ a, atol=1e-6)


def test_an_adapter_decodes_as_its_merged_model_does(folder: Path, tiny: Any) -> None:
    model = outpace.load(folder, dtype="float64")
    [plain] = outpace.generate(model, PROMPT, "autoregressive", max_tokens=24, temperature=0)
    [drafted] = outpace.generate(model, PROMPT, "prompt-lookup", max_tokens=24, temperature=0)
    [before] = outpace.generate(tiny.target, PROMPT, "autoregressive", max_tokens=24, temperature=0)
    assert plain.tokens == drafted.tokens != before.tokens
    ids = load_tokenizer(tiny.target)(PROMPT)["input_ids"]
    assert load_tokenizer(str(folder))(PROMPT)["input_ids"] == ids


def test_the_layer_after_which_an_adapted_model_drafts_is_kept(
    folder: Path, tiny: Any, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    model, _ = load_checkpoint(tiny.target, dtype="float64", device="cpu")
    changed = adapter.with_low_rank_changes(model, tiny.target, 3)
    layers = drafting_layers(outpace.load(folder, dtype="float64").target)
    setattr(changed.config, adapter.EXIT_LAYER, layers + 1)
    adapter.save_adapter(changed, tmp_path)
    assert drafting_layers(outpace.load(tmp_path, dtype="float64").target) == layers + 1
    assert not [each for each in recwarn if adapter.EXIT_LAYER in str(each.message)]


def test_unsuited_adapters_are_refused(
    folder: Path, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((folder / adapter.CONFIG).read_text())

    def refused(message: str, *, text: str | None = None, data: bytes | None = None, **changes: Any) -> None:
        path = tmp_path / "other"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(folder, path)
        (path / adapter.CONFIG).write_text(text or json.dumps(config | changes))
        if data is not None:
            (path / adapter.WEIGHTS).write_bytes(data)
        with pytest.raises(ValueError, match=message) as caught:
            load_checkpoint(str(path), device="cpu")
        assert "\n" not in str(caught.value)

    refused("not a JSON object", text="{")
    refused("does not name the adapter's model", base_model_name_or_path=None)
    refused("there is no checkpoint folder", base_model_name_or_path=str(tmp_path / "absent"))
    refused("does not fit", base_model_name_or_path="zoo:draft")
    refused("does not fit", data=b"abc")
    (folder / adapter.WEIGHTS).rename(tmp_path / "kept")
    refused("has no adapter_model.safetensors")
    (tmp_path / "kept").rename(folder / adapter.WEIGHTS)
    monkeypatch.setattr(adapter, "find_spec", lambda name: None)
    refused(r"outpace\[adapters\]")


def test_a_model_of_the_library_decodes_by_its_base_model(folder: Path, tiny: Any) -> None:
    from peft import PeftModel

    model, words = load_checkpoint(tiny.target, dtype="float64", device="cpu")
    adapted: Any = PeftModel.from_pretrained(model, folder)
    with pytest.raises(
        ValueError, match=r"PeftModelForCausalLM wraps a model: give model.get_base_model\(\)"
    ):
        outpace.generate(adapted, PROMPT, "prompt-lookup", tokenizer=words)
    inputs = words(PROMPT, return_tensors="pt")
    expected = adapted.generate(**inputs, max_new_tokens=24, do_sample=False)
    ours = adapted.generate(
        **inputs, max_new_tokens=24, do_sample=False, custom_generate=outpace.hf("prompt-lookup")
    )
    [result] = outpace.generate(
        adapted.get_base_model(), PROMPT, "prompt-lookup", tokenizer=words, max_tokens=24
    )
    assert ours.tolist() == expected.tolist()
    assert result.tokens == expected[0, inputs["input_ids"].shape[1] :].tolist()


def test_learnt_prompts_are_refused_in_generate(tiny: Any) -> None:
    from peft import PromptTuningConfig, get_peft_model

    model, words = load_checkpoint(tiny.target, dtype="float64", device="cpu")
    adapted: Any = get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    with pytest.raises(
        ValueError, match="adds inputs to those of LlamaForCausalLM.*leave out custom_generate"
    ):
        adapted.generate(
            **words(PROMPT, return_tensors="pt"),
            max_new_tokens=4,
            custom_generate=outpace.hf("prompt-lookup"),
        )
