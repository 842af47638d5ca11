"""P-EAGLE: its two file layouts, and what is refused of them. How it drafts is in test_parallelspec.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from outpace.models.heads.draft_head import head_config
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import kind_in, load_head, save_head
from outpace.models.heads.kinds import head_kind
from outpace.models.heads.p_eagle.head import PEagleHead, draw_mask
from outpace.models.hf.target import HFTarget
from outpace.proof.models import transformers_models

SOME = (0, 2, 3, 5, 8)


def target() -> HFTarget:
    made = transformers_models(vocab=12).target
    assert isinstance(made, HFTarget)
    return made


def made(of: HFTarget, num_layers: int = 1, **options: Any) -> Any:
    ids = options.pop("draft_ids", None)
    config = head_config(of, of.vocab if ids is None else len(ids), num_layers)
    draft_ids = None if ids is None else torch.tensor(ids)
    head = PEagleHead(config, of.embed, (0, 1), mask_token=7, draft_ids=draft_ids, **options).double()
    draw_mask(head, 3)
    return head.eval()


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("speculators", {"num_layers": 3, "draft_ids": SOME}),
        ("raw", {"num_layers": 2}),
        ("raw", {"draft_ids": SOME}),
    ],
)
def test_a_head_is_read_as_it_was_written(layout: Any, options: dict[str, Any], tmp_path: Path) -> None:
    of = target()
    head = made(of, **options)
    save_head(head, tmp_path, of, layout=layout)
    kind = kind_in(tmp_path)
    assert kind is not None and kind.method == "p-eagle"
    again: Any = load_head("p-eagle", tmp_path, of)
    assert again.mask_token == 7 and again.taps == (0, 1)
    assert all(torch.equal(again.own[name], weight) for name, weight in head.own.items())
    stored, config = (
        load_file(tmp_path / "model.safetensors"),
        json.loads((tmp_path / "config.json").read_text()),
    )
    assert stored["mask_hidden"].shape == (1, 1, 2 * head.config.hidden_size)
    if layout == "speculators":
        assert config["architectures"] == ["PEagleSpeculator"] and config["mask_token_id"] == 7
        assert config["speculators_model_type"] == config["speculators_config"]["algorithm"] == "peagle"
    else:
        assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["ptd_token_id"] == 7


@pytest.mark.parametrize(
    ("layout", "change", "sentence"),
    [
        ("speculators", {"mask_token_id": None}, "lacks mask_token_id, the token in its mask slots: add it"),
        ("speculators", {"mask_token_id": 12}, "mask_token_id is 12, and the target has the tokens 0 to 11"),
        ("raw", {"ptd_token_id": -1}, "ptd_token_id is -1, and the target has the tokens 0 to 11"),
        ("raw", {"num_hidden_layers": 2}, r"lacks layers\.1\."),
    ],
)
def test_bad_files_are_refused_in_a_sentence(
    layout: Any, change: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    of = target()
    save_head(made(of), tmp_path, of, layout=layout)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(HeadFileError, match=sentence):
        load_head("p-eagle", tmp_path, of)


@pytest.mark.slow
def test_options_that_vllm_ignores_are_named() -> None:
    refuses = head_kind("p-eagle").engines["vllm"].refuses
    assert refuses(made(target())) is None
    assert "ignores norm_output" in str(refuses(made(target(), norm_output=True)))
    assert "ignores fc_norm" in str(refuses(made(target(), fc_norm=True)))
