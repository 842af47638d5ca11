"""Tests of benchmarks.wider_models: larger models that compute what a small one does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.wider_models import widened


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
