"""The models of a benchmark in two modes, compiled and eager."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from outpace.bench.measure.models import BenchModels


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
