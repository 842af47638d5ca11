"""Methods with a draft head on a server: the texts are those of plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import outpace
from outpace.models.heads.formats.folder import save_head
from outpace.models.heads.hydra.head import untrained_hydra
from outpace.models.heads.medusa.head import untrained_medusa

PROMPTS = ["def add(a, b):", "class Stack:"]


@pytest.mark.parametrize("method", [pytest.param("medusa", marks=pytest.mark.slow), "hydra"])
def test_a_head_without_a_kv_cache_serves(method: str, model: Any, serve: Any, tmp_path: Path) -> None:
    made = {"medusa": untrained_medusa, "hydra": untrained_hydra}[method]
    save_head(made(model.target), tmp_path, model.target)
    plain = outpace.generate(model, PROMPTS, method="autoregressive", max_tokens=6, temperature=0.0)
    with serve(model, method, options={"head": str(tmp_path)}) as running:
        completion = running.client().completions.create(
            model="zoo", prompt=PROMPTS, max_tokens=6, temperature=0.0
        )
        assert [each.text for each in completion.choices] == [each.text for each in plain]
        assert "draft_tokens_total" in running.call("/metrics")[1]
    assert (model.heads.pop((method, str(tmp_path))).model is not None) == (method == "hydra")
