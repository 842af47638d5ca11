"""Tests of benchmarks.wider_models: larger models that compute what a small one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import outpace
from benchmarks.wider_models import main, widen_head, widened
from outpace.models.heads.formats.folder import load_head
from outpace.models.heads.position_head import PositionHead
from outpace.training.run import train


def test_a_wider_model_computes_the_same_logits(tiny: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny.target, dtype=torch.float64).eval()
    wide = widened(model, 3 * model.config.intermediate_size)
    tokens = torch.arange(1, 9)[None] % model.config.vocab_size
    with torch.inference_mode():
        torch.testing.assert_close(wide(tokens).logits, model(tokens).logits, rtol=1e-12, atol=1e-12)
    assert wide.num_parameters() > model.num_parameters()
    weights = wide.state_dict()["model.layers.0.mlp.gate_proj.weight"]
    added = weights[model.config.intermediate_size :]
    assert 0.01 < float(added.std()) < 0.04, "the added columns are not zero, which a runtime could skip"


def test_a_width_that_is_not_larger_is_refused(tiny: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny.target)
    with pytest.raises(ValueError, match="give a larger number than"):
        widened(model, model.config.intermediate_size)


@pytest.mark.parametrize("method", ["eagle", "eagle3", "hydra", "medusa"])
def test_a_wider_head_computes_the_same_logits(method: str, tiny: Any, tmp_path: Path) -> None:
    columns = 3 * AutoModelForCausalLM.from_pretrained(tiny.target).config.intermediate_size
    target, folder, wide = (tmp_path / name for name in ("target", "head", "wide"))
    main(tiny.target, target, columns)
    small, large = (outpace.load(str(each), dtype="float32") for each in (tiny.target, target))
    train(method, target=small, data="builtin:code", output=folder, dry_run=True)
    widen_head(folder, wide, target, columns)
    tokens = torch.arange(1, 6)
    found, sizes = [], []
    for model, path in ((small, folder), (large, wide)):
        head: Any = load_head(method, path, model.target)
        layer: Any = head
        if isinstance(head, PositionHead):
            layer = head.prefix
            logits, _ = head(0, torch.ones(5, head.hidden_size), tokens)
            found.append(logits)
        if layer is not None:
            features = torch.ones(1, 5, layer.feature_size)
            positions = torch.arange(5)[None]
            found.append(layer(tokens[None], positions, features=features, use_cache=False).logits)
        sizes.append(sum(each.numel() for each in head.own.values()))
    half = len(found) // 2
    for one, other in zip(found[:half], found[half:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        assert one.std() > 0
    assert (sizes[1] > sizes[0]) == (method != "medusa")
