"""Models that cannot be decoded are refused in one sentence that names the fix."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from outpace.core.tree import Forest, TokenTree
from outpace.models.checkpoint import choose_dtype, explain
from outpace.models.hf.target import HFTarget, load

SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rwkv", {"attention_hidden_size": 16}),
        ("xlstm", {"num_heads": 2}),
        ("minimax", {"num_local_experts": 2, "num_key_value_heads": 2, "head_dim": 8}),
        ("recurrent_gemma", {"num_key_value_heads": 1, "block_types": ["recurrent", "attention"]}),
    ],
)
def test_models_that_keep_recurrent_states_in_a_form_of_their_own_are_refused(name, options):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **SMALL, **options))
    with pytest.raises(ValueError, match="recurrent layers use transformers' cache, or one without them"):
        HFTarget(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["mamba", "jamba"])
def test_models_that_cannot_read_a_text_in_parts_are_refused(name, dtype, tiny):
    """In transformers these begin every forward over several tokens with an empty state. That is noticed also
    where states have little effect on logits."""
    model = tiny(name).to(dtype)
    with torch.no_grad():
        for label, parameter in model.named_parameters():
            if "out_proj" in label:
                parameter *= 1e-4
    with pytest.raises(ValueError, match="computes something else when a text is read in parts"):
        HFTarget(model)


@pytest.mark.slow
def test_rounding_in_many_layers_is_no_reason_to_refuse_a_model(tiny):
    model = tiny("bamba", num_hidden_layers=24, attn_layer_indices=[11, 23]).to(torch.bfloat16)
    assert not HFTarget(model).chains_only


def test_attention_in_every_layer_is_no_recurrent_model(tiny):
    """Architectures with recurrent layers have members without them."""
    target = HFTarget(tiny("granitemoehybrid", layer_types=["attention", "attention"]))
    assert not target.chains_only


def test_encoder_decoder_models_are_refused():
    config = AutoConfig.for_model("t5", vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="encoder-decoder models are not supported"):
        HFTarget(AutoModelForSeq2SeqLM.from_config(config))


def test_a_model_that_fails_to_wrap_is_given_back(tiny):
    model = tiny("bloom")
    before = model.config._attn_implementation
    with warnings.catch_warnings(), pytest.raises(UserWarning):
        warnings.simplefilter("error")
        HFTarget(model)
    assert model.config._attn_implementation == before


def test_trees_are_refused_where_only_chains_are_right(tiny):
    with pytest.warns(UserWarning, match="scores chains, not trees"):
        target = HFTarget(tiny("bloom"))
    assert target.chains_only
    cache = target.open(1, 16)
    tree = TokenTree(torch.tensor([5, 6, 7]), Forest.of([-1, 0, 0], 1))
    with pytest.raises(
        ValueError, match="chains only: draft one token a level, as speculative-sampling does"
    ):
        target.score(tree, (0,), cache)


@pytest.fixture
def checkpoint(tiny, tmp_path):
    """A saved tiny model, without a tokenizer."""
    tiny("llama").save_pretrained(tmp_path)
    return tmp_path


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match="there is no checkpoint folder .*nothing: check the path"):
        load(tmp_path / "nothing")


def test_an_empty_folder_is_not_a_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="config.json, weights and a tokenizer"):
        load(tmp_path)


def test_damaged_weights_are_refused(checkpoint):
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cut short, download it again"):
        load(checkpoint, device="cpu")


def test_a_checkpoint_without_a_tokenizer_is_refused(checkpoint):
    with pytest.raises(ValueError, match="tokenizer"):
        load(checkpoint, device="cpu")


def test_hub_failures_are_one_sentence_each():
    offline = explain("a/b", OSError("We couldn't connect to 'https://huggingface.co' to load the files"))
    assert "hub cannot be reached" in offline
    gated = explain("a/b", OSError("You are trying to access a gated repo.\nMake sure to have access"))
    assert "accept its licence" in gated
    unknown = explain(
        "a/b", OSError("a/b is not a local folder and is not a valid model identifier listed on")
    )
    assert "check the folder or the hub name" in unknown
    assert all("\n" not in sentence for sentence in (offline, gated, unknown))


def test_dtype_auto_is_what_the_machine_computes_in(monkeypatch):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    for native, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr("outpace.models.native_dtypes.is_native", lambda dtype, native=native: native)
        assert choose_dtype("auto", cpu, object()) == expected
    assert choose_dtype("auto", gpu, object()) == "auto"
    assert choose_dtype("float16", cpu, object()) == torch.float16
    with pytest.raises(ValueError, match="float99 is not a dtype"):
        choose_dtype("float99", cpu, object())


@pytest.mark.parametrize("alibi", ["sdpa", "eager"])
def test_falcon_with_alibi_is_refused_where_transformers_adds_the_biases_twice(alibi, tiny):
    model = tiny("falcon", alibi=True)
    model.config._attn_implementation = alibi
    if alibi == "sdpa":
        with pytest.raises(ValueError, match="attn_implementation='eager'"):
            HFTarget(model)
    else:
        with pytest.warns(UserWarning, match="chains"):
            assert HFTarget(model).chains_only


def test_an_unreachable_hub_is_reported_at_once(monkeypatch):
    def unknown(*_, **__):
        raise OSError("Temporary failure in name resolution")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    with pytest.raises(ValueError, match="some/model is not on this machine and the hub cannot be reached"):
        load("some/model")
