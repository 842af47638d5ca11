"""Folders with heads: what each layout holds, and the readings of it that would load without an error and
draft wrong tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from outpace.core.tree import Forest, TokenTree
from outpace.models.fingerprint import KEY as FINGERPRINT
from outpace.models.fingerprint import target_fingerprint
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle3.head import Eagle3Head, default_taps
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import load_head, save_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kinds import recognised
from outpace.models.hf.target import HFTarget

IDS = "eagle_aux_hidden_state_layer_ids"
SOME = [0, 3, 4, 9, 33, 60]  # tokens of a draft vocabulary
ATTENTION = [f"self_attn.{name}_proj.weight" for name in "qkvo"]
MLP = [f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")]


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def change(folder: Path, *, remove: tuple[str, ...] = (), **keys: Any) -> None:
    """Rewrite the configuration."""
    config = {name: each for name, each in config_of(folder).items() if name not in remove}
    (folder / "config.json").write_text(json.dumps(config | keys))


def retensor(folder: Path, edit: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Rewrite the weights."""
    tensors = edit(load_file(folder / "model.safetensors"))
    save_file(
        {name: each.contiguous().clone() for name, each in tensors.items()}, folder / "model.safetensors"
    )


def outputs(head: DraftHead, seed: int = 0) -> Tensor:
    """Logits for a random text with random hidden states."""
    generator = torch.Generator().manual_seed(seed)
    width = head.feature_size * len(head.taps)
    hidden = torch.randn(12, width, generator=generator)
    tokens = torch.randint(0, 61, (1, 12), generator=generator)
    with torch.no_grad():
        features = head.fuse(hidden)[None]
        return head(tokens, torch.arange(12)[None], features=features).logits


def same(head: DraftHead, other: DraftHead) -> bool:
    ids = (head.draft_ids, other.draft_ids)
    return (
        (head.taps, head.state_layer) == (other.taps, other.state_layer)
        and (ids[0] is ids[1] is None or torch.equal(*ids))
        and torch.equal(outputs(head), outputs(other))
    )


OPTIONS: list[dict[str, Any]] = [
    {},
    {"draft_ids": SOME},
    {"norm_output": True},
    {"norm_before_fc": True},
    {"fc_norm": True},
    {"taps": (2,)},
    {"taps": (0, 1, 5, 7), "fc_norm": True, "draft_ids": SOME},
]
ONLY_SPECULATORS: list[dict[str, Any]] = [{"norm_before_residual": True}, {"qk_norm": True}]


@pytest.mark.parametrize("layout", ["speculators", "raw"])
@pytest.mark.parametrize("options", OPTIONS + ONLY_SPECULATORS, ids=str)
def test_an_eagle3_head_is_read_as_it_was_written(
    layout: Any, options: dict[str, Any], eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    head = eagle3(**options)
    if layout == "raw" and options in ONLY_SPECULATORS:
        with pytest.raises(HeadFileError, match="write the layout speculators"):
            save_head(head, tmp_path, target, layout=layout)
        return
    save_head(head, tmp_path, target, layout=layout)
    assert same(load_head("eagle3", tmp_path, target), head)


@pytest.mark.parametrize("bias", [False, True])
def test_an_eagle_head_is_read_as_it_was_written(
    bias: bool, eagle: Any, target: HFTarget, tmp_path: Path
) -> None:
    head = eagle(bias=bias)
    save_head(head, tmp_path, target)
    assert config_of(tmp_path)["bias"] is bias
    assert same(load_head("eagle", tmp_path, target), head)


def test_options_change_what_a_head_computes(eagle3: Any) -> None:
    """Else reading one as another would not be seen above."""
    found = [outputs(eagle3(**each)) for each in ({}, *ONLY_SPECULATORS, *OPTIONS[3:5])]
    assert all(not torch.allclose(found[0], each, atol=1e-2) for each in found[1:])


# What the layouts hold


def test_tensors_and_keys_of_the_speculators_layout(eagle3: Any, target: HFTarget, tmp_path: Path) -> None:
    save_head(eagle3(draft_ids=SOME), tmp_path, target, name="org/target")
    config, tensors = config_of(tmp_path), load_file(tmp_path / "model.safetensors")
    norms = [f"{name}.weight" for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")]
    assert tensors.keys() == {
        *("embed_tokens.weight", "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"),
        *(f"layers.0.{name}" for name in [*norms, *ATTENTION, *MLP]),
    }
    assert tensors["fc.weight"].shape == (32, 96) and tensors["lm_head.weight"].shape == (6, 32)
    assert tensors["layers.0.self_attn.q_proj.weight"].shape == (32, 64)
    assert tensors["d2t"].tolist() == [0, 2, 2, 6, 29, 55] and tensors["d2t"].dtype == torch.int64
    assert tensors["t2d"].nonzero().flatten().tolist() == SOME and tensors["t2d"].shape == (61,)
    assert config["architectures"] == ["Eagle3Speculator"] and config["speculators_model_type"] == "eagle3"
    assert config["speculators_config"]["verifier"] == {
        "name_or_path": "org/target",
        "architectures": ["LlamaForCausalLM"],
    }
    assert config["speculators_config"]["proposal_methods"][0]["proposal_type"] == "greedy"
    layer = config["transformer_layer_config"]
    assert layer["model_type"] == "llama" and layer["vocab_size"] == 61 and layer["num_hidden_layers"] == 1
    # 8 layers: outputs of layers 1, 3 and 4 are the inputs of 2, N // 2 and N - 3
    assert config[IDS] == [2, 4, 5]
    assert config["draft_vocab_size"] == 6 and config["target_hidden_size"] == 32
    for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "embed_requires_grad"):
        assert config[name] is False


def test_tensors_and_keys_of_the_raw_layout(eagle3: Any, target: HFTarget, tmp_path: Path) -> None:
    save_head(eagle3(), tmp_path, target, layout="raw")
    config, tensors = config_of(tmp_path), load_file(tmp_path / "model.safetensors")
    norms = [f"{name}.weight" for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")]
    # the embedding is the target's; vLLM refuses maps of the whole vocabulary
    assert tensors.keys() == {
        *("fc.weight", "norm.weight", "lm_head.weight"),
        *(f"midlayer.{name}" for name in [*norms, *ATTENTION, *MLP]),
    }
    save_head(eagle3(draft_ids=SOME), tmp_path / "some", target, layout="raw")
    assert {"d2t", "t2d"} <= load_file(tmp_path / "some" / "model.safetensors").keys()
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["model_type"] == "llama"
    assert config["tie_word_embeddings"] is False and config["draft_vocab_size"] == config["vocab_size"] == 61
    # vLLM reads the outer key and counts from the embedding, SGLang the nested one and counts layers
    assert config[IDS] == [2, 4, 5] and config["eagle_config"][IDS] == [1, 3, 4]


def test_tensors_and_keys_of_the_eagle_layout(eagle: Any, target: HFTarget, tmp_path: Path) -> None:
    save_head(eagle(), tmp_path, target)
    config, tensors = config_of(tmp_path), load_file(tmp_path / "model.safetensors")
    assert tensors.keys() == {
        *("embed_tokens.weight", "fc.weight", "fc.bias", "layers.0.post_attention_layernorm.weight"),
        *(f"layers.0.{name}" for name in ATTENTION + MLP),
    }
    assert tensors["fc.weight"].shape == (32, 64)
    assert config["architectures"] == ["LlamaForCausalLM"] and config["num_hidden_layers"] == 1


def test_qwen3_layers_have_their_own_model_type(eagle3: Any, target: HFTarget, tmp_path: Path) -> None:
    save_head(eagle3(qk_norm=True), tmp_path, target)
    assert config_of(tmp_path)["transformer_layer_config"]["model_type"] == "qwen3"
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["layers.0.self_attn.q_norm.weight"].shape == (8,)
    assert tensors["layers.0.self_attn.k_norm.weight"].shape == (8,)


@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"fc_norm": True}], ids=str)
def test_a_head_runs_with_a_kv_cache_as_without(options: dict[str, bool], eagle3: Any) -> None:
    head = eagle3(**options)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(12, 32, generator=generator)
    tokens = torch.randint(0, 61, (12,), generator=generator)
    opened = HeadModel(head)
    tree, cache = TokenTree(tokens, Forest.chain((11,))), opened.model.open(1, 16)
    scores = opened.model.score(tree, [0], cache, opened.state, features=[features])
    with torch.no_grad():
        wanted = head(tokens[None], torch.arange(12)[None], features=features[None]).logits[0]
        drafted = head.lm_head(head.norm(scores.hidden[0]))  # from the features of the next draft
    for found in (scores.logits, drafted):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def norm(values: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return values / (values.square().mean(-1, keepdim=True) + eps).sqrt() * weight


@pytest.mark.parametrize("norm_before_residual", [False, True])
@pytest.mark.parametrize("norms", ["", "norm_before_fc", "fc_norm"])
def test_the_formula_of_eagle3_from_the_stored_tensors(
    norm_before_residual: bool, norms: str, eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    """At a text's first token attention returns the values, whatever queries, keys and rotations are."""
    options: dict[str, bool] = {norms: True} if norms else {}
    save_head(eagle3(norm_before_residual=norm_before_residual, **options), tmp_path, target)
    stored = load_file(tmp_path / "model.safetensors")
    weight = {name.removesuffix(".weight").removeprefix("layers.0."): each for name, each in stored.items()}
    hidden, token = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)), 17
    if norms == "fc_norm":
        hidden = torch.stack([norm(row, weight[f"fc_norm.{index}"]) for index, row in enumerate(hidden)])
    joined = hidden.flatten()
    if norms == "norm_before_fc":
        joined = norm(joined, weight["input_norm"])
    feature = weight["fc"] @ joined
    embedded = norm(weight["embed_tokens"][token], weight["input_layernorm"])
    normed = norm(feature, weight["hidden_norm"])
    values = weight["self_attn.v_proj"] @ torch.cat((embedded, normed))  # 2 heads for 4 of queries
    values = values.view(2, 8).repeat_interleave(2, 0).flatten()
    states = (normed if norm_before_residual else feature) + weight["self_attn.o_proj"] @ values
    between = norm(states, weight["post_attention_layernorm"])
    gate = torch.nn.functional.silu(weight["mlp.gate_proj"] @ between)
    states = states + weight["mlp.down_proj"] @ (gate * (weight["mlp.up_proj"] @ between))
    wanted = weight["lm_head"] @ norm(states, weight["norm"])

    head = load_head("eagle3", tmp_path, target)
    taken = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).flatten()[None]
    with torch.no_grad():
        features = head.fuse(taken)[None]
        found = head(torch.tensor([[token]]), torch.tensor([[0]]), features=features).logits[0, 0]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
def test_the_formula_of_eagle_from_the_stored_tensors(
    bias: bool, eagle: Any, target: HFTarget, tmp_path: Path
) -> None:
    """The embedding stands before the hidden state; there is no norm before attention and none at the end.
    As above, attention returns the values."""
    save_head(eagle(bias=bias), tmp_path, target)
    stored = load_file(tmp_path / "model.safetensors")
    weight = {name.removesuffix(".weight").removeprefix("layers.0."): each for name, each in stored.items()}
    hidden, token = torch.randn(32, generator=torch.Generator().manual_seed(0)), 17
    states = weight["fc"] @ torch.cat((weight["embed_tokens"][token], hidden)) + weight.get("fc.bias", 0)
    values = (weight["self_attn.v_proj"] @ states).view(2, 8).repeat_interleave(2, 0).flatten()
    states = states + weight["self_attn.o_proj"] @ values
    between = norm(states, weight["post_attention_layernorm"])
    gate = torch.nn.functional.silu(weight["mlp.gate_proj"] @ between)
    states = states + weight["mlp.down_proj"] @ (gate * (weight["mlp.up_proj"] @ between))

    head = load_head("eagle", tmp_path, target)
    with torch.no_grad():
        wanted = target.head(states)
        found = head(torch.tensor([[token]]), torch.tensor([[0]]), features=hidden[None, None]).logits[0, 0]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


# Trap: the numbers of layers


def written(head: DraftHead, target: HFTarget, folder: Path, layout: Any = None) -> Path:
    save_head(head, folder, target, layout=layout)
    return folder


def test_numbers_of_layers_in_vllms_key_are_larger_by_one(
    eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    for layout in ("speculators", "raw"):
        folder = written(eagle3(), target, tmp_path / layout, layout)
        change(folder, remove=("eagle_config",), **{IDS: [1, 5, 8]})
        assert load_head("eagle3", folder, target).taps == (0, 4, 7)


def test_numbers_of_layers_in_sglangs_key_are_those_of_layers(
    eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    folder = written(eagle3(), target, tmp_path, "raw")
    change(folder, remove=(IDS,), eagle_config={IDS: [1, 5, 7]})
    assert load_head("eagle3", folder, target).taps == (1, 5, 7)


def test_without_numbers_of_layers_they_are_the_papers(eagle3: Any, target: HFTarget, tmp_path: Path) -> None:
    for layout in ("speculators", "raw"):
        folder = written(eagle3(), target, tmp_path / layout, layout)
        change(folder, remove=(IDS, "eagle_config"))
        assert load_head("eagle3", folder, target).taps == (1, 3, 4)  # 2, 8 // 2, 8 - 3 from the embedding


@pytest.mark.parametrize(
    ("num_layers", "taps"),
    [
        (1, (0,)),
        (2, (0, 1)),
        (6, (0, 2, 5)),
        (7, (1, 2, 5)),
        (8, (1, 3, 6)),
        (16, (1, 7, 14)),
        (32, (1, 15, 28)),  # of the paper, as for all deeper models
        (80, (1, 39, 76)),
    ],
)
def test_layers_of_new_heads(num_layers: int, taps: tuple[int, ...]) -> None:
    assert default_taps(num_layers) == taps


def test_two_keys_that_name_different_layers_are_refused(
    eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    """Copies of one list, as some conversions write them."""
    folder = written(eagle3(), target, tmp_path, "raw")
    change(folder, eagle_config={IDS: [2, 4, 5]})
    with pytest.raises(HeadFileError, match=r"layers \[1, 3, 4\] in .* and of \[2, 4, 5\] in eagle_config"):
        load_head("eagle3", folder, target)


def test_numbers_of_layers_in_any_order_mean_the_order_of_layers(
    eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    """Servers keep hidden states in the order of layers, in training and in serving."""
    folder = written(eagle3(), target, tmp_path)
    change(folder, **{IDS: [5, 2, 4]})
    assert same(load_head("eagle3", folder, target), eagle3())
    with pytest.raises(ValueError, match="in increasing order"):
        eagle3(taps=(4, 1, 3))


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ([0, 4, 5], "reads the target's embedding as a layer"),
        ([2, 4, 9], "the target has layers 0 to 7"),
        ([2, 4], r"reads 3 layers and its config.json names 2|names 2 layers"),
        ([2, 4, 4], "different and in increasing order"),
    ],
)
def test_numbers_of_layers_that_cannot_be_are_refused(
    ids: list[int], sentence: str, eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    folder = written(eagle3(), target, tmp_path)
    change(folder, **{IDS: ids})
    with pytest.raises(HeadFileError, match=sentence):
        load_head("eagle3", folder, target)


@pytest.mark.parametrize("layout", ["speculators", "raw"])
@pytest.mark.parametrize("taps", [(3,), (0, 2, 4, 6)])
def test_the_number_of_layers_stands_where_vllm_reads_it(
    layout: Any, taps: tuple[int, ...], eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    """vLLM makes `fc` for three layers without it."""
    folder = written(eagle3(taps=taps), target, tmp_path, layout)
    config = config_of(folder)
    where = config["transformer_layer_config"] if layout == "speculators" else config
    assert where["num_aux_hidden_states"] == len(taps)
    where["num_aux_hidden_states"] = 3
    change(folder, **config)
    with pytest.raises(HeadFileError, match="num_aux_hidden_states is 3"):
        load_head("eagle3", folder, target)


# Traps: options whose absence means different things


@pytest.mark.parametrize(("layout", "normed"), [("speculators", True), ("raw", False)])
def test_what_an_absent_norm_before_residual_means(
    layout: Any, normed: bool, eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    folder = written(eagle3(), target, tmp_path, layout)
    assert config_of(folder)["norm_before_residual"] is False  # always stated
    change(folder, remove=("norm_before_residual",))
    head = load_head("eagle3", folder, target)
    assert torch.equal(outputs(head), outputs(eagle3(norm_before_residual=normed)))


@pytest.mark.parametrize("layout", ["speculators", "raw"])
def test_what_an_absent_norm_output_means(layout: Any, eagle3: Any, target: HFTarget, tmp_path: Path) -> None:
    folder = written(eagle3(norm_output=True), target, tmp_path, layout)
    assert load_head("eagle3", folder, target).state_layer == -1
    change(folder, remove=("norm_output",))
    assert load_head("eagle3", folder, target).state_layer == 0


@pytest.mark.parametrize("option", ["norm_before_fc", "fc_norm"])
@pytest.mark.parametrize("layout", ["speculators", "raw"])
def test_norms_before_fc_are_found_by_their_weights(
    option: str, layout: Any, eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    head = eagle3(**{option: True})
    folder = written(head, target, tmp_path, layout)
    change(folder, remove=(option,))
    assert same(load_head("eagle3", folder, target), head)
    change(folder, **{option: False})
    with pytest.raises(
        HeadFileError, match=r"has (input_norm|fc_norm.0).weight.*this head of EAGLE-3 does not"
    ):
        load_head("eagle3", folder, target)


def test_modelopt_has_options_beside_the_numbers_of_layers(
    eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    head = eagle3(norm_output=True)
    folder = written(head, target, tmp_path, "raw")
    change(folder, remove=("norm_output", IDS), eagle_config={IDS: [1, 3, 4], "norm_output": True})
    assert same(load_head("eagle3", folder, target), head)


def test_norms_before_fc_exclude_each_other(eagle3: Any, target: HFTarget, tmp_path: Path) -> None:
    folder = written(eagle3(fc_norm=True), target, tmp_path)
    change(folder, norm_before_fc=True)
    with pytest.raises(HeadFileError, match="exclude each other"):
        load_head("eagle3", folder, target)


# Trap: the draft vocabulary


def test_token_ids_in_place_of_offsets_are_refused(eagle3: Any, target: HFTarget, tmp_path: Path) -> None:
    folder = written(eagle3(draft_ids=SOME), target, tmp_path)
    retensor(folder, lambda tensors: tensors | {"d2t": torch.tensor(SOME)})
    with pytest.raises(HeadFileError, match="holds token ids instead of offsets: subtract"):
        load_head("eagle3", folder, target)


def test_token_ids_in_place_of_offsets_are_seen_without_the_mask_if_they_run_over(
    eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    folder = written(eagle3(draft_ids=SOME), target, tmp_path)
    retensor(folder, lambda tensors: {**tensors, "d2t": torch.tensor(SOME), "t2d": torch.ones(61).bool()})
    with pytest.raises(HeadFileError, match="that are those of t2d"):
        load_head("eagle3", folder, target)

    def bare(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: each for name, each in tensors.items() if name != "t2d"}

    retensor(folder, bare)
    with pytest.raises(HeadFileError, match="holds token ids instead of offsets"):
        load_head("eagle3", folder, target)


@pytest.mark.parametrize(
    ("offsets", "sentence"),
    [
        ([0, 2, 2, 6, 29], "d2t has 5 entries and draft_vocab_size is 6"),
        ([0, -1, 2, 6, 29, 55], "does not name 6 different tokens"),
        ([0, 2, 2, 6, 29, 56], "does not name 6 different tokens"),
        (None, "lacks d2t"),
    ],
)
def test_draft_vocabularies_that_cannot_be_are_refused(
    offsets: list[int] | None, sentence: str, eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    folder = written(eagle3(draft_ids=SOME), target, tmp_path)

    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        kept = {name: each for name, each in tensors.items() if name not in ("d2t", "t2d")}
        return kept if offsets is None else kept | {"d2t": torch.tensor(offsets)}

    retensor(folder, edit)
    with pytest.raises(HeadFileError, match=sentence):
        load_head("eagle3", folder, target)


def test_without_a_draft_vocabulary_and_lm_head_it_is_the_targets(
    eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    folder = written(eagle3(), target, tmp_path, "raw")
    change(folder, remove=("draft_vocab_size",))
    without = ("lm_head.weight", "d2t", "t2d")
    retensor(folder, lambda found: {name: each for name, each in found.items() if name not in without})
    head = load_head("eagle3", folder, target)
    assert head.lm_head is target.head and "lm_head.weight" not in head.own
    # what is written from it holds a copy and needs no such rule
    again = written(head, target, tmp_path / "again", "raw")
    assert torch.equal(load_file(again / "model.safetensors")["lm_head.weight"], target.head.weight)
    assert same(load_head("eagle3", again, target), head)


# Trap: embeddings


@pytest.mark.parametrize("layout", ["speculators", "raw", "eagle"])
def test_embeddings_may_be_stored_or_not(
    layout: Any, eagle: Any, eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    head = eagle() if layout == "eagle" else eagle3()
    folder, weight = written(head, target, tmp_path, layout), target.embed.weight.detach()
    for stored in (None, weight, weight.bfloat16(), weight + 1):
        retensor(
            folder,
            lambda found, stored=stored: {
                **{name: each for name, each in found.items() if name != "embed_tokens.weight"},
                **({} if stored is None else {"embed_tokens.weight": stored}),
            },
        )
        read = load_head(head.method, folder, target)
        assert read.is_for(target)
        if stored is None or stored is weight:
            assert read.embed_tokens is target.embed and same(read, head)
        else:  # of another value: the head was trained with its own
            assert torch.equal(read.embed_tokens.weight, stored.to(weight))
            assert "embed_tokens.weight" in read.own and torch.equal(target.embed.weight, weight)
            again = written(read, target, tmp_path / "again", layout)
            assert same(load_head(head.method, again, target), read)


def test_a_copy_of_the_embedding_takes_half_the_space_where_that_loses_nothing(
    eagle: Any, target: HFTarget, tmp_path: Path
) -> None:
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        target.embed.weight.data = target.embed.weight.data.to(dtype).float()
        folder = written(eagle(), target, tmp_path / name)
        assert load_file(folder / "model.safetensors")["embed_tokens.weight"].dtype == dtype
        assert load_head("eagle", folder, target).embed_tokens is target.embed


# Traps: EAGLE's bias and norms


def test_the_tensors_say_whether_eagle_has_a_bias(eagle: Any, target: HFTarget, tmp_path: Path) -> None:
    """Without the key it is there for the official code and not for vLLM."""
    for bias in (True, False):
        folder = written(eagle(bias=bias), target, tmp_path / str(bias))
        change(folder, remove=("bias",))
        assert same(load_head("eagle", folder, target), eagle(bias=bias))
        change(folder, bias=not bias)
        with pytest.raises(HeadFileError, match="has fc.bias" if bias else "lacks fc.bias"):
            load_head("eagle", folder, target)


@pytest.mark.parametrize("extra", ["layers.0.input_layernorm.weight", "norm.weight"])
def test_norms_that_eagle_does_not_have_are_refused(
    extra: str, eagle: Any, target: HFTarget, tmp_path: Path
) -> None:
    folder = written(eagle(), target, tmp_path)
    retensor(folder, lambda found: found | {extra: torch.ones(32)})
    with pytest.raises(HeadFileError, match=f"has {extra}"):
        load_head("eagle", folder, target)


def test_older_configurations_of_vllm_nest_the_layer(eagle: Any, target: HFTarget, tmp_path: Path) -> None:
    folder = written(eagle(), target, tmp_path)
    layer = {name: each for name, each in config_of(folder).items() if name != FINGERPRINT}
    (folder / "config.json").write_text(json.dumps({"model_type": "eagle", "model": layer}))
    assert same(load_head("eagle", folder, target), eagle())


# Names and files


def test_the_layer_has_two_names(eagle3: Any, target: HFTarget, tmp_path: Path) -> None:
    for layout, names in (("speculators", ("layers.0.", "midlayer.")), ("raw", ("midlayer.", "layers.0."))):
        folder = written(eagle3(), target, tmp_path / layout, layout)
        retensor(folder, lambda found, names=names: {
            name.replace(*names): each for name, each in found.items()
        })  # fmt: skip
        assert same(load_head("eagle3", folder, target), eagle3())


def test_rotary_frequencies_of_older_configurations(eagle3: Any, target: HFTarget, tmp_path: Path) -> None:
    folder = written(eagle3(), target, tmp_path, "raw")
    assert config_of(folder)["rope_theta"] == config_of(folder)["rope_parameters"]["rope_theta"]
    change(folder, remove=("rope_parameters",), rope_theta=500000.0)
    head = load_head("eagle3", folder, target)
    assert head.config.rope_parameters["rope_theta"] == 500000.0
    assert not torch.equal(outputs(head), outputs(eagle3()))


def test_copies_of_the_target_kept_while_training_are_left_out(
    eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    folder = written(eagle3(), target, tmp_path)
    retensor(folder, lambda found: found | {
        "verifier_lm_head.weight": torch.ones(61, 32), "verifier_norm.weight": torch.ones(32)
    })  # fmt: skip
    assert same(load_head("eagle3", folder, target), eagle3())


def test_pickled_weights_are_refused(
    eagle: Any, target: HFTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(eagle(), target, tmp_path)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(HeadFileError, match="pickled weights") as raised:
        load_head("eagle", folder, target)
    monkeypatch.chdir(folder)
    command = str(raised.value).split("convert them with ")[1]
    eval(command, {"torch": torch, "safetensors": safetensors})  # the fix that the sentence names
    assert same(load_head("eagle", folder, target), eagle())


# Heads for something else


def test_the_target_is_known_by_its_fingerprint(
    eagle3: Any, target: HFTarget, tiny: Any, tmp_path: Path
) -> None:
    folder = written(eagle3(), target, tmp_path)
    model = tiny("llama", num_hidden_layers=8).float()
    assert load_head("eagle3", folder, HFTarget(model)).taps == (1, 3, 4)  # the same weights
    with torch.no_grad():
        model.model.layers[7].mlp.up_proj.weight *= 1.5
    other = HFTarget(model)
    with pytest.raises(HeadFileError, match=f"trained for another target.*remove {FINGERPRINT}"):
        load_head("eagle3", folder, other)
    change(folder, remove=(FINGERPRINT,))
    assert load_head("eagle3", folder, other).is_for(other)


def test_a_fingerprint_does_not_depend_on_the_dtype(tiny: Callable[..., PreTrainedModel]) -> None:
    single, half = tiny("llama").float(), tiny("llama").float().bfloat16()
    found = target_fingerprint(HFTarget(single))
    assert found == target_fingerprint(HFTarget(half))
    assert found != target_fingerprint(HFTarget(tiny("llama", num_hidden_layers=3).float()))
    with torch.no_grad():
        half.lm_head.weight[30:].mul_(2)  # a part of one matrix
    assert found != target_fingerprint(HFTarget(half))


def test_a_target_of_another_size_is_refused(
    eagle3: Any, eagle: Any, target: HFTarget, tiny: Any, tmp_path: Path
) -> None:
    other = HFTarget(tiny("llama", num_hidden_layers=8, hidden_size=16).float())
    for head in (eagle3(), eagle()):
        folder = written(head, target, tmp_path / head.method)
        change(folder, remove=(FINGERPRINT,))
        with pytest.raises(HeadFileError, match="hidden states of 32 numbers, and this target's have 16"):
            load_head(head.method, folder, other)
    with pytest.raises(HeadFileError, match="made for another target"):
        save_head(eagle3(), tmp_path / "wrong", other)


def test_a_head_of_another_kind_is_refused(eagle3: Any, eagle: Any, target: HFTarget, tmp_path: Path) -> None:
    with pytest.raises(HeadFileError, match="no layout raw for heads of EAGLE: write eagle"):
        save_head(eagle(), tmp_path, target, layout="raw")
    with pytest.raises(HeadFileError, match="no layout eagle for heads of EAGLE-3: write speculators or raw"):
        save_head(eagle3(), tmp_path, target, layout="eagle")
    with pytest.raises(HeadFileError, match="no layout foo for heads of EAGLE-3: write speculators or raw"):
        save_head(eagle3(), tmp_path, target, layout="foo")
    save_head(eagle(), tmp_path / "1", target)
    with pytest.raises(HeadFileError, match="holds a head of EAGLE: use it with the method eagle"):
        load_head("eagle3", tmp_path / "1", target)
    for layout in ("speculators", "raw"):
        save_head(eagle3(), tmp_path / layout, target, layout=layout)
        with pytest.raises(HeadFileError, match="holds a head of EAGLE-3: use it with the method eagle3"):
            load_head("eagle", tmp_path / layout, target)


@pytest.mark.parametrize(
    ("layout", "keys", "sentence"),
    [
        ("speculators", {"speculators_model_type": "mtp"}, "drafter of the type mtp"),
        ("speculators", {"speculators_model_type": "peagle"}, "holds a head of P-EAGLE"),
        ("raw", {"ptd_token_id": 3}, "holds a head of P-EAGLE"),
        ("raw", {"num_hidden_layers": 2}, "has 2 decoder layers"),
        ("raw", {"hidden_size": 16}, "only heads as wide as the target"),
        ("raw", {"intermediate_size": 40}, r"mlp.*proj.weight is .* restore"),
        ("raw", {"num_attention_heads": "many"}, "num_attention_heads .many., but it is a whole number"),
    ],
)
def test_what_is_not_supported_is_refused(
    layout: Any, keys: dict[str, Any], sentence: str, eagle3: Any, target: HFTarget, tmp_path: Path
) -> None:
    folder = written(eagle3(), target, tmp_path, layout)
    change(folder, **keys)
    with pytest.raises(HeadFileError, match=sentence):
        load_head("eagle3", folder, target)


@pytest.mark.parametrize("name", ["fc.weight", "layers.0.self_attn.q_proj.weight"])
def test_weights_that_lack_a_tensor_are_to_be_restored(
    name: str, eagle: Any, target: HFTarget, tmp_path: Path
) -> None:
    folder = written(eagle(), target, tmp_path / "head")
    retensor(folder, lambda found: {key: each for key, each in found.items() if key != name})
    with pytest.raises(HeadFileError, match=f"model.safetensors lacks {name}.*: restore that file"):
        load_head("eagle", folder, target)


@pytest.mark.parametrize("spoil", ["no folder", "no config", "no weights", "cut", "list", "another model"])
def test_folders_without_a_head_are_refused(spoil: str, eagle: Any, target: HFTarget, tmp_path: Path) -> None:
    folder = written(eagle(), target, tmp_path / "head")
    weights = folder / "model.safetensors"
    if spoil == "no folder":
        folder = tmp_path / "elsewhere"
    elif spoil == "no config":
        (folder / "config.json").unlink()
    elif spoil == "no weights":
        weights.unlink()
    elif spoil == "cut":
        weights.write_bytes(weights.read_bytes()[:100])
    elif spoil == "list":
        (folder / "config.json").write_text("[]")
    else:
        retensor(folder, lambda found: {"model.norm.weight": torch.ones(32)})
    with pytest.raises(HeadFileError, match=r"no folder|no draft head|no configuration|is empty"):
        load_head("eagle", folder, target)


def test_every_layout_of_a_published_head_is_told_by_its_configuration() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"]}, "speculators"),
        ({"speculators_model_type": "eagle3", "architectures": ["Eagle3DraftModel"]}, "speculators"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "raw"),
        ({"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 32000}, "raw"),  # the first ones
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "eagle"),
        ({"model_type": "eagle", "model": {}}, "eagle"),
        ({"architectures": None}, "eagle"),
    ]
    for config, wanted in cases:
        found = recognised(config, ["fc.weight"])
        assert found is not None
        kind, layout = found
        assert kind.layouts[wanted] is layout, config


def test_a_head_is_still_an_eagle3_head(eagle3: Any, target: HFTarget, tmp_path: Path) -> None:
    read = load_head("eagle3", written(eagle3(), target, tmp_path), target)
    assert isinstance(read, Eagle3Head) and not read.training
