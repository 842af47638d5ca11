"""The models of a benchmark in two modes, compiled and eager."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from outpace.bench.measure.models import BenchModels
from outpace.bench.measure.workload import WorkloadItem
from outpace.core.sampling_params import SamplingParams
from outpace.recipes import Method


@pytest.mark.slow
def test_heads_have_compressed_weights_in_both_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ExitStack() as stack:
        models = BenchModels(stack, "zoo:target", dtype="float32", compile=True, draft_weights="int8")
        opened = [mode.opener.head(("eagle",), "zoo:eagle").model for mode in models.modes]
    compiled, eager = (each for each in opened if each is not None)
    assert compiled.compiled is not None and eager.compiled is None
    assert all(map(torch.equal, compiled.model.parameters(), eager.model.parameters()))
    assert compiled.compressed_weights is not None


def test_prompts_that_a_draft_model_cannot_read_are_left_out(tiny: Any) -> None:
    items = [
        WorkloadItem(name, "code", (text,), False) for name, text in (("short", "def"), ("long", "def " * 9))
    ]
    with ExitStack() as stack:
        models = BenchModels(stack, tiny.target, tiny.draft)
        models.modes[0].opener.draft(tiny.draft).max_length = 16
        made = models.measurement(
            [Method("speculative-sampling", {})], items, [0.0], SamplingParams(max_tokens=8), rounds=1
        )
    assert made.left_out == ["long"] and [each.id for each in made.cases] == ["short"]
