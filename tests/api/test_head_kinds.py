"""What a folder holds is told by its files: a head of some kind, or else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import outpace
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import kind_in, method_in
from outpace.models.names import HEADS

METHODS = ("eagle", "eagle2", "hass", "eagle3", "dovetail", "fspad", "gto", "coral")
METHODS += ("kangaroo", "medusa", "hydra", "mlp-speculator", "redrafter", "s4c", "chimera")


@pytest.mark.parametrize("method", METHODS)
def test_a_model_is_no_head(method: str, loaded: Any, tiny: Any) -> None:
    with pytest.raises(ValueError, match=r"holds a model \(LlamaForCausalLM\) and no draft head: give it as"):
        outpace.generate(loaded[0], "def", method=method, head=tiny.draft)


def test_the_package_s_heads_are_told_apart() -> None:
    for folder in sorted(each for each in HEADS.iterdir() if each.is_dir()):
        found = kind_in(folder)
        assert found is not None and found.method == ("eagle" if folder.name == "hass" else folder.name)


def test_a_head_of_another_kind_is_named_whatever_is_wanted() -> None:
    for wanted in ("eagle", "eagle3", "hydra", "kangaroo"):
        with pytest.raises(
            HeadFileError, match=f"holds a head of medusa: use it .* give a head of {wanted}$"
        ):
            method_in(HEADS / "medusa", (wanted,))


def test_what_is_neither_model_nor_head_is_said(tmp_path: Path) -> None:
    with pytest.raises(HeadFileError, match="is empty: give a folder with config.json"):
        method_in(tmp_path, ("eagle",))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(HeadFileError, match="holds an adapter, which changes the weights of a whole model"):
        method_in(tmp_path, ("eagle",))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(HeadFileError, match="holds no draft head"):
        method_in(tmp_path, ("eagle",))
    parts = {"weight_map": {"model.layers.0.mlp.up_proj.weight": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(parts))
    with pytest.raises(HeadFileError, match=r"holds a model \(LlamaForCausalLM\)"):
        method_in(tmp_path, ("eagle", "eagle3"))
