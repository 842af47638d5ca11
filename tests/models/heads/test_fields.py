"""Heads whose configurations have fields of wrong types and values: one sentence, with file and field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.eagle3.head import untrained_eagle3
from outpace.models.heads.formats.fields import FIELDS
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import kind_in, load_head, save_head
from outpace.models.heads.hydra.head import untrained_hydra
from outpace.models.heads.kangaroo.head import untrained_kangaroo
from outpace.models.heads.medusa.head import untrained_medusa
from outpace.models.heads.mlp_speculator.head import untrained_mlp_speculator
from outpace.models.heads.redrafter.head import untrained_redrafter
from outpace.models.hf.target import HFTarget

FOLDERS = ("eagle", "speculators", "raw", "kangaroo", "medusa", "hydra", "mlp-speculator", "redrafter")
BAD = ("x", -1, 2.5, 10**30, float("nan"), ["x"], {"a": 1}, True, None)
ROPE = (
    {"rope_type": "nope"},
    {"rope_type": 5},
    {"rope_type": "yarn"},
    {"rope_type": "linear", "factor": "x"},
    {"rope_type": "llama3", "factor": 2},
    {"rope_theta": "x"},
    {"rope_theta": 0},
    {"type": ["linear"]},
    {"rope_type": "default", "rope_theta": None},
)


@cache
def target() -> HFTarget:
    torch.manual_seed(0)
    shape: dict[str, Any] = dict(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return HFTarget(LlamaForCausalLM(LlamaConfig(**shape)).eval())


def save(name: str, folder: Path) -> Path:
    model = target()
    if name == "eagle":
        save_head(untrained_eagle(model), folder, model)
    elif name == "kangaroo":
        save_head(untrained_kangaroo(model), folder, model)
    elif name in ("speculators", "raw"):
        save_head(untrained_eagle3(model), folder, model, layout=name)
    else:
        made = {
            "medusa": untrained_medusa,
            "hydra": untrained_hydra,
            "mlp-speculator": untrained_mlp_speculator,
            "redrafter": untrained_redrafter,
        }
        save_head(made[name](model), folder, model)
    return folder


def load(folder: Path) -> None:
    kind = kind_in(folder)
    assert kind is not None
    load_head(kind.method, folder, target())


@pytest.mark.parametrize(
    ("name", "field", "value", "said"),
    [
        ("eagle", "rope_theta", "x", "rope_theta 'x', but it is a number above 0"),
        ("eagle", "rope_parameters", {"rope_type": 5}, "rope_parameters.rope_type 5, but it is a text"),
        ("raw", "rope_parameters", {"rope_type": "nope"}, "rope_parameters {'rope_type': 'nope'"),
        ("raw", "rope_parameters", {"rope_type": "yarn"}, "keys in `rope_parameters` for 'rope_type'='yarn'"),
        ("kangaroo", "rope_parameters", {"rope_theta": -2.0}, "rope_parameters.rope_theta -2.0"),
        ("speculators", "transformer_layer_config", 3, "transformer_layer_config 3, but it is an object"),
        ("eagle", "num_attention_heads", "2", "num_attention_heads '2', but it is a whole number from 1"),
        ("eagle", "hidden_act", "nope", "describes no head (KeyError: 'nope'"),
        ("raw", "architectures", 5, "architectures 5, but it is a list of names"),
        ("raw", "eagle_aux_hidden_state_layer_ids", ["x"], "but it is a list of numbers of layers"),
        ("mlp-speculator", "n_predict", -3, "n_predict -3, but it is a whole number from 1"),
        ("redrafter", "exit_dim", None, "lacks exit_dim"),
        ("hydra", "hydra_num_heads", None, "lacks hydra_num_heads"),
        ("medusa", "logit_scale", "x", "logit_scale 'x', but it is a number above 0"),
    ],
)
def test_a_wrong_field_is_named(name: str, field: str, value: Any, said: str, tmp_path: Path) -> None:
    file = save(name, tmp_path) / "config.json"
    load(tmp_path)
    config = json.loads(file.read_text())
    if field == "rope_theta":
        config.pop("rope_parameters")
    file.write_text(json.dumps(config | {field: value}))
    with pytest.raises(HeadFileError) as error:
        load(tmp_path)
    assert said in str(error.value) and "\n" not in str(error.value)


def places(config: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in config.items():
        yield (*before, name)
        if isinstance(value, dict):
            yield from places(value, (*before, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_every_field_may_be_wrong(name: str, tmp_path: Path) -> None:
    """Each field that the kind has, and each that any kind reads, is wrong in turn: the head loads, or is
    refused."""
    file = save(name, tmp_path) / "config.json"
    config = json.loads(file.read_text())
    changed = {*places(config), *((each,) for each in FIELDS)}
    if "transformer_layer_config" in config:
        changed |= {("transformer_layer_config", each) for each in FIELDS}
    refused = 0
    for place in sorted(changed):
        for bad in (*BAD, *(ROPE if place[-1].startswith("rope_") else ())):
            spoilt = json.loads(json.dumps(config))
            at = spoilt
            for each in place[:-1]:
                at = at[each]
            at[place[-1]] = bad
            file.write_text(json.dumps(spoilt))
            try:
                load(tmp_path)
            except HeadFileError as error:
                refused += 1
                assert "\n" not in str(error)
            except AssertionError:  # no head any more: it has lost the field by which it is told
                assert kind_in(tmp_path) is None
    assert refused > 20
