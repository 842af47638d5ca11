"""Folders with heads without a KV cache: what is written, what is read and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outpace.core.contracts import TargetWithLayers
from outpace.models.fingerprint import KEY
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import load_head, save_head
from outpace.models.heads.hydra.head import HydraHead, untrained_hydra
from outpace.models.heads.kinds import head_kind
from outpace.models.heads.medusa.head import MedusaHead, untrained_medusa
from outpace.models.heads.mlp_speculator.head import MlpSpeculatorHead, untrained_mlp_speculator
from outpace.models.heads.position_head import PositionHead, random_parameters
from outpace.models.heads.redrafter.head import ReDrafterHead, untrained_redrafter
from outpace.models.table import TableTarget
from outpace.proof.models import transformers_models


def small(vocab: int) -> TargetWithLayers:
    target = transformers_models(vocab=vocab).target
    assert isinstance(target, TargetWithLayers)
    return target


TARGET = small(6)
SIZE = 16  # of its hidden states

POSITION_HEADS = ("medusa", "hydra", "mlp-speculator", "redrafter")
MAKERS: dict[str, Callable[[], PositionHead]] = {
    "medusa": lambda: untrained_medusa(TARGET),
    "medusa, two layers without bias": lambda: random_parameters(
        MedusaHead(TARGET, 2, num_layers=2, bias=False)
    ),
    "medusa, a part of the vocabulary": lambda: random_parameters(
        MedusaHead(TARGET, 2, draft_ids=torch.tensor([1, 3, 4]))
    ),
    "hydra": lambda: random_parameters(HydraHead(TARGET, 2)),
    "hydra, three layers without bias": lambda: random_parameters(
        HydraHead(TARGET, 2, num_layers=3, bias=False)
    ),
    "hydra, a part of the vocabulary": lambda: random_parameters(
        HydraHead(TARGET, 2, draft_ids=torch.tensor([0, 2, 5]))
    ),
    "hydra++": lambda: untrained_hydra(TARGET),
    "mlp-speculator": lambda: untrained_mlp_speculator(TARGET),
    "mlp-speculator, tied": lambda: random_parameters(
        MlpSpeculatorHead(TARGET, 4, 10, tied=True, scale_input=True)
    ),
    "redrafter": lambda: untrained_redrafter(TARGET),
    "redrafter, a part of the vocabulary": lambda: random_parameters(
        ReDrafterHead(TARGET, draft_ids=torch.tensor([0, 2, 5]))
    ),
    "redrafter, narrow": lambda: random_parameters(ReDrafterHead(TARGET, num_layers=1, exit_size=10)),
}


def outputs(head: PositionHead) -> list[Tensor]:
    """Logits along a path."""
    generator = torch.Generator().manual_seed(1)
    states = head.begin(torch.randn(2, SIZE, generator=generator, dtype=torch.float64))
    found: list[Tensor] = []
    with torch.no_grad():
        for depth in range(head.max_depth or 4):
            logits, states = head(depth, states, torch.tensor([depth, 5]))
            found.append(logits)
    return found


def rewritten(
    folder: Path,
    config: Mapping[str, Any] | None = None,
    rename: Callable[[str], str] = lambda name: name,
    dropped: str = "",
    added: Mapping[str, Tensor] | None = None,
) -> None:
    """Change a folder's configuration and the names of its tensors."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | dict(config or {})))
    tensors = load_file(folder / "model.safetensors")
    kept = {rename(name): each for name, each in tensors.items() if not dropped or dropped not in name}
    save_file(kept | dict(added or {}), folder / "model.safetensors")


@pytest.mark.parametrize("name", MAKERS)
def test_a_head_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    head = MAKERS[name]()
    head.rank_accuracies = ((0.5, 0.25), (0.125,))
    save_head(head, tmp_path / "new" / "head", TARGET)
    found = load_head(head.method, tmp_path / "new" / "head", TARGET)
    assert type(found) is type(head) and found.rank_accuracies == head.rank_accuracies
    assert found.own.keys() == head.own.keys() and found.embed_tokens is TARGET.embed
    for name, parameter in head.own.items():
        assert torch.equal(found.own[name], parameter), name
    if head.draft_ids is None:
        assert found.draft_ids is None
    else:
        assert found.draft_ids is not None and torch.equal(found.draft_ids, head.draft_ids)
    for one, other in zip(outputs(head), outputs(found), strict=True):
        assert torch.equal(one, other)
    assert not any(
        "embed_tokens" in each for each in load_file(tmp_path / "new" / "head" / "model.safetensors")
    )


def test_weights_get_the_dtype_of_the_target_and_rotary_frequencies_stay_float32(tmp_path: Path) -> None:
    head = untrained_hydra(TARGET)
    for parameter in head.own.values():
        parameter.data = parameter.data.bfloat16()
    save_head(head, tmp_path, TARGET)
    found = load_head("hydra", tmp_path, TARGET)
    assert {each.dtype for each in found.own.values()} == {torch.float64}
    assert isinstance(found, HydraHead) and found.prefix is not None
    assert {each.dtype for each in found.prefix.buffers()} == {torch.float32}


def test_the_configuration_of_medusa_has_the_sizes_that_vllm_reads(tmp_path: Path) -> None:
    head = MedusaHead(TARGET, 3, num_layers=2, bias=False, draft_ids=torch.tensor([1, 3, 4]))
    save_head(random_parameters(head), tmp_path, TARGET)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    sizes = {"hidden_size": SIZE, "vocab_size": 6, "truncated_vocab_size": 3, "num_heads": 3}
    assert config.items() >= (sizes | {"num_hidden_layers": 2, "medusa_fc_bias": False}).items()


# the names that the other projects give to a tensor of each kind
NAMES = {
    "medusa": {"blocks.1.layers.0.weight", "blocks.1.layers.0.bias", "lm_heads.4.weight"},
    "hydra++": {
        "hydra_mlp.2.1.linear.weight",
        "hydra_mlp.2.1.res_connection.bias",
        "hydra_mlp.2.3.linear.weight",
        "hydra_mlp.2.7.linear.bias",
        "hydra_lm_head.3.1.bias",
        "prefix_embeding_layer.layers.0.self_attn.q_proj.weight",
        "prefix_embeding_layer.layers.0.input_layernorm.weight",
        "prefix_embeding_layer.norm.weight",
    },
    "mlp-speculator": {"speculator.emb.2.weight", "speculator.proj.0.weight", "speculator.ln.1.bias"},
    "mlp-speculator, tied": {"speculator.emb.0.weight", "speculator.proj.1.weight"},
    "redrafter": {"rnn_w.weight", "rnn_u.bias", "lm_head.1.linear.bias", "lm_head.2.weight"},
}


@pytest.mark.parametrize("name", NAMES)
def test_tensors_have_the_names_of_the_other_projects(name: str, tmp_path: Path) -> None:
    save_head(MAKERS[name](), tmp_path, TARGET)
    assert load_file(tmp_path / "model.safetensors").keys() >= NAMES[name]


@pytest.mark.parametrize("prefix", ["", "medusa_head.", "medusa_heads."])
def test_medusas_own_layout_is_read(prefix: str, tmp_path: Path) -> None:
    """Its configuration may give a wrong number of heads, and a target may be in the same file."""
    head = untrained_medusa(TARGET)
    save_head(head, tmp_path, TARGET)

    def rename(name: str) -> str:
        kind, number, *rest = name.split(".")
        if kind == "lm_heads":
            return f"{prefix}{number}.1.weight"
        return f"{prefix}{number}.0.linear.{rest[-1]}"

    rewritten(tmp_path, rename=rename, added={"model.norm.weight": torch.ones(2)} if prefix else None)
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "x"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = load_head("medusa", tmp_path, TARGET)
    assert all(torch.equal(one, other) for one, other in zip(outputs(head), outputs(found), strict=True))


def test_medusa_factor_of_the_logits_and_rows_outside_of_the_draft_vocabulary(tmp_path: Path) -> None:
    head = MAKERS["medusa, a part of the vocabulary"]()
    assert isinstance(head, MedusaHead) and head.draft_ids is not None
    save_head(head, tmp_path, TARGET)
    wide = {}
    for name, weight in head.own.items():
        if name.startswith("lm_heads"):
            wide[name] = torch.full((6, SIZE), 7.0, dtype=torch.float64)
            wide[name][head.draft_ids] = weight.data
    rewritten(tmp_path, {"logit_scale": 0.5}, added=wide)
    found = load_head("medusa", tmp_path, TARGET)
    for one, other in zip(outputs(head), outputs(found), strict=True):
        assert torch.equal(0.5 * one, other) and one.shape == (2, 3)


def test_hydra_stores_repeated_layers_once_or_each(tmp_path: Path) -> None:
    head = untrained_hydra(TARGET)
    for name, parameter in head.own.items():
        first = name.replace("layers.1", "layers.0").replace("layers.2", "layers.0")
        parameter.data = head.own[first].data if name.startswith("blocks") else parameter.data
    save_head(head, tmp_path, TARGET)
    rewritten(tmp_path, dropped=".5.linear")
    rewritten(
        tmp_path, dropped=".7.linear", added={"prefix_embeding_layer.embed_tokens.weight": torch.ones(2)}
    )
    found = load_head("hydra", tmp_path, TARGET)
    assert all(torch.equal(one, other) for one, other in zip(outputs(head), outputs(found), strict=True))


def test_mlp_speculator_without_prefix_and_with_copies_of_tied_tensors(tmp_path: Path) -> None:
    head = MAKERS["mlp-speculator, tied"]()
    save_head(head, tmp_path, TARGET)
    copies = {
        f"{kind}.{step}.{rest}": head.own[f"{kind}.{int(kind == 'proj')}.{rest}"].data.clone()
        for kind, rests in {
            "emb": ["weight"],
            "head": ["weight"],
            "ln": ["weight", "bias"],
            "proj": ["weight"],
        }.items()
        for rest in rests
        for step in range(1, 4)
    }
    rewritten(tmp_path, rename=lambda name: name.removeprefix("speculator."), added=copies)
    found = load_head("mlp-speculator", tmp_path, TARGET)
    assert all(torch.equal(one, other) for one, other in zip(outputs(head), outputs(found), strict=True))


def test_inner_size_0_is_the_hidden_size(tmp_path: Path) -> None:
    save_head(random_parameters(MlpSpeculatorHead(TARGET, 2, SIZE)), tmp_path, TARGET)
    rewritten(tmp_path, {"inner_dim": 0})
    found = load_head("mlp-speculator", tmp_path, TARGET)
    assert isinstance(found, MlpSpeculatorHead) and found.inner_size == SIZE


@pytest.mark.parametrize(
    ("name", "config", "sentence"),
    [
        ("medusa", {"original_lm_head": True}, "give them one each"),
        ("medusa", {"rank_accuracies": [[0.5], [1.5]]}, "numbers outside of 0 to 1: remove it"),
        ("medusa", {"rank_accuracies": 3}, "not one list of numbers per depth: remove it"),
        ("hydra", {"hydra_head_arch": "eagle-attn"}, "kind eagle-attn.*give heads of the kind mlp or prefix"),
        ("hydra", {"grounded_heads": False}, "grounded_heads False.*that read drafted tokens"),
        ("hydra", {"hidden_state_offset": 1}, "give heads of the last one"),
        ("hydra", {"hydra_num_heads": 3}, "lacks hydra_|lacks blocks|lacks lm_heads"),
        ("hydra", {"hydra_head_arch": "prefix-mlp"}, "lacks prefix"),
        ("mlp-speculator", {"emb_dim": 8}, "hidden states of 8 numbers, and this target's have 16"),
        ("mlp-speculator", {"vocab_size": 9}, "a target with 9 tokens, and this target has 6"),
        ("mlp-speculator", {"n_predict": None}, "the configuration lacks n_predict"),
        ("mlp-speculator", {"inner_dim": 5}, r"is \(.*\), and config.json says \(.*5"),
        ("mlp-speculator", {"n_predict": 2}, "has .*2.*, which this head of MLP speculator does not have"),
        ("redrafter", {"rnn": False}, "give one with a recurrent network"),
        ("redrafter", {"hidden_size": 8}, "hidden states of 8 numbers"),
        ("redrafter", {"exit_dim": 8}, "lacks input_proj.bias, input_proj.weight"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, config: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    head = MAKERS[name]()
    save_head(head, tmp_path, TARGET)
    rewritten(tmp_path, config)
    with pytest.raises(HeadFileError, match=sentence) as found:
        load_head(head.method, tmp_path, TARGET)
    assert str(tmp_path) in str(found.value)


@pytest.mark.parametrize("name", [name for name in MAKERS if "a part of the vocabulary" in name])
def test_a_missing_token_map_is_named_if_the_target_is_the_right_one(name: str, tmp_path: Path) -> None:
    head = MAKERS[name]()
    save_head(head, tmp_path, TARGET)
    rewritten(tmp_path, dropped="token_map")
    sentence = (
        "safetensors lacks token_map, which says which 3 of the target's 6 tokens it drafts: restore that"
    )
    with pytest.raises(HeadFileError, match=sentence):
        load_head(head.method, tmp_path, TARGET)


@pytest.mark.parametrize(
    ("name", "missing", "sentence"),
    [
        ("medusa, a part of the vocabulary", "lm_heads.1.weight", "lacks lm_heads.1.weight: restore that"),
        (
            "medusa, a part of the vocabulary",
            "blocks.1.layers.0.bias",
            "lacks blocks.1.layers.0.bias: restore",
        ),
        ("hydra", "hydra_lm_head.0.1.bias", "lacks lm_heads.0.bias: restore that file"),
        ("redrafter", "rnn_u.bias", "lacks rnn_u.bias: restore that file"),
    ],
)
def test_a_file_that_lacks_a_tensor_is_named(name: str, missing: str, sentence: str, tmp_path: Path) -> None:
    head = MAKERS[name]()
    save_head(head, tmp_path, TARGET)
    rewritten(tmp_path, dropped=missing)
    with pytest.raises(HeadFileError, match=f"model.safetensors {sentence}"):
        load_head(head.method, tmp_path, TARGET)


@pytest.mark.parametrize("method", POSITION_HEADS)
def test_a_head_of_another_method_or_target_is_refused(method: str, tmp_path: Path) -> None:
    head = MAKERS[method]()
    save_head(head, tmp_path, TARGET)
    for other in set(POSITION_HEADS) - {method}:
        title = head_kind(other).title
        with pytest.raises(
            HeadFileError, match=f"holds a head of .* with the method {method}, or give a head of {title}"
        ):
            load_head(other, tmp_path, TARGET)
    with pytest.raises(HeadFileError, match=f"trained for another target.*remove {KEY}"):
        load_head(method, tmp_path, TableTarget(4))
    rewritten(tmp_path, {KEY: None})
    with pytest.raises(HeadFileError, match="hidden states of 16 numbers, and this target's have 4"):
        load_head(method, tmp_path, TableTarget(4))
    with pytest.raises(HeadFileError, match="a target with 6 tokens, and this target has 8"):
        load_head(method, tmp_path, small(8))


def test_folders_without_a_head_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadFileError, match="there is no folder"):
        load_head("medusa", tmp_path / "none", TARGET)
    save_head(untrained_medusa(TARGET), tmp_path, TARGET)
    rewritten(tmp_path, dropped="lm_heads.0")
    with pytest.raises(HeadFileError, match="lacks lm_heads.0.weight"):
        load_head("medusa", tmp_path, TARGET)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(HeadFileError, match="holds no draft head: give a folder with a head of Medusa"):
        load_head("medusa", tmp_path, TARGET)
    weights = tmp_path / "model.safetensors"
    weights.rename(tmp_path / "medusa_lm_head.safetensors")
    with pytest.raises(HeadFileError, match=r"rename it to model\.safetensors"):
        load_head("medusa", tmp_path, TARGET)
    (tmp_path / "medusa_lm_head.safetensors").rename(tmp_path / "medusa_lm_head.pt")
    with pytest.raises(HeadFileError, match=r"pickled weights \(medusa_lm_head\.pt\).*convert them"):
        load_head("medusa", tmp_path, TARGET)


def test_token_ids_beyond_the_targets_vocabulary_are_refused(tmp_path: Path) -> None:
    save_head(MAKERS["medusa, a part of the vocabulary"](), tmp_path, TARGET)
    rewritten(tmp_path, added={"token_map": torch.tensor([1, 3, 6])})
    with pytest.raises(HeadFileError, match="token_map names tokens beyond the target's 6"):
        load_head("medusa", tmp_path, TARGET)
