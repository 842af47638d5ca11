"""The models in the package load as any other model, match their cards, and are as small as promised."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import outpace
from outpace import zoo
from outpace.models.fingerprint import target_fingerprint
from outpace.models.slim.make import drafting_layers
from zoo_training import tasks
from zoo_training.cards import page

PAIR = {"target": 15_000_000, "draft": 1_200_000}
OTHERS = {"draft-2k": 1_000_000, "draft-bytes": 1_000_000}  # with tokens of their own
LIMITS = PAIR | OTHERS
ADAPTERS = {"layerskip"}  # to zoo:target
ADAPTER_BYTES = 8_000_000
MEASURED = {"code", "arithmetic", "edit", "chat"}


def test_all_models_are_in_the_package() -> None:
    assert set(LIMITS) | ADAPTERS == set(zoo.names()), (
        "weights are missing under outpace/zoo/weights: an incomplete checkout?"
    )


def test_names_lead_to_folders() -> None:
    assert zoo.path("zoo:target") == zoo.path("target")
    assert (zoo.path("zoo:draft") / "tokenizer.json").is_file()


def test_an_unknown_name_gives_the_list_of_names() -> None:
    with pytest.raises(ValueError, match="zoo:draft.*zoo:target"):
        zoo.path("zoo:giant")


@pytest.mark.parametrize("name", LIMITS)
def test_a_model_matches_its_card(name: str) -> None:
    card = zoo.card(name)
    model = AutoModelForCausalLM.from_pretrained(zoo.path(name))
    assert model.dtype == torch.bfloat16
    size = sum(weight.numel() for weight in model.parameters())
    assert size == card["parameters"] <= LIMITS[name]
    assert model.config.vocab_size == card["vocabulary"] == len(AutoTokenizer.from_pretrained(zoo.path(name)))
    assert all(torch.isfinite(weight).all() for weight in model.parameters())
    assert len(card["corpus_sha256"]) == 64 and card["steps"] > 0 and card["tokens_seen"] > 0
    for field in ("python", "device", "command", "data", "seed", "training_minutes"):
        assert card[field] not in ("", None), field
    assert set(card["held_out_loss"]) == MEASURED
    assert set(card["pair"]) == MEASURED if name in PAIR else "pair" not in card
    assert set(card["held_out_accuracy"]) == MEASURED - {"code"}
    assert (zoo.path(name) / "README.md").read_text(encoding="utf-8") == page(card)


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_matches_its_card(name: str) -> None:
    folder, card = zoo.path(name), zoo.card(name)
    assert (folder / "adapter_model.safetensors").stat().st_size <= ADAPTER_BYTES
    loaded, base = outpace.load(f"zoo:{name}"), outpace.load("zoo:target")
    size = sum(weight.numel() for weight in loaded.target.model.parameters())
    assert size == card["parameters"] and loaded.target.vocab == card["vocabulary"]
    assert set(card["held_out_loss"]) == MEASURED and set(card["held_out_accuracy"]) == MEASURED - {"code"}
    facts = card["training"]
    assert facts["target_name"] == "zoo:target" and facts["target"] == target_fingerprint(base.target)
    assert (folder / "README.md").read_text(encoding="utf-8").count(card["name"]) > 0


@pytest.mark.slow
def test_early_exits_of_the_adapted_target_draft() -> None:
    """The text is that of plain decoding, and after three of eight layers, the exit that was trained and the
    default, most tokens are known."""
    model = outpace.load("zoo:layerskip", dtype="float32")
    assert drafting_layers(model.target) == 3
    options = {"max_tokens": 64, "temperature": 0.0}
    prompt = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n"
    [plain] = outpace.generate(model, prompt, method="autoregressive", **options)
    [found] = outpace.generate(model, prompt, method="layerskip", depth=3, **options)
    assert found.text == plain.text and found.statistics.mean_acceptance_length > 3


def test_both_have_the_same_vocabulary() -> None:
    one, other = (AutoTokenizer.from_pretrained(zoo.path(name)) for name in PAIR)
    assert one.get_vocab() == other.get_vocab()
    assert one.chat_template == other.chat_template


@pytest.mark.parametrize("text", ["x = {'naïve': 1}\n\n\n\tif y:", "漢字 🙂", ""])
def test_the_shipped_tokenizer_gives_text_back(text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_target_ends_its_answers() -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    model = AutoModelForCausalLM.from_pretrained(zoo.path("target"), dtype=torch.float32)
    task = tasks.held_out("arithmetic", 1)[0]
    inputs = tokenizer.apply_chat_template(
        task.messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**inputs, max_new_tokens=120, do_sample=False)
    assert out[0, -1] == tokenizer.eos_token_id and out.shape[1] < inputs["input_ids"].shape[1] + 120
    assert model.generation_config.eos_token_id in (tokenizer.eos_token_id, [tokenizer.eos_token_id])
