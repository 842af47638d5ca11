"""Heads without a KV cache given as folders: opened once, checked, and of no influence on the text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import outpace
from outpace.models.heads.formats.folder import save_head
from outpace.models.heads.hydra.head import untrained_hydra
from outpace.models.heads.medusa.head import untrained_medusa
from outpace.models.heads.mlp_speculator.head import untrained_mlp_speculator
from outpace.models.heads.position_head import PositionHead
from outpace.models.heads.position_model import PositionModel
from outpace.models.heads.redrafter.head import untrained_redrafter
from outpace.models.hf.target import HFTarget

MAKERS: dict[str, Callable[[HFTarget], PositionHead]] = {
    "medusa": untrained_medusa,
    "hydra": untrained_hydra,
    "mlp-speculator": untrained_mlp_speculator,
    "redrafter": untrained_redrafter,
}


@pytest.mark.parametrize("method", MAKERS)
def test_a_folder_with_a_head_drafts(method: str, loaded, tmp_path: Path) -> None:
    target, _ = loaded
    save_head(MAKERS[method](target.target), tmp_path, target.target)
    options = {"max_tokens": 12, "temperature": 0.0}
    [expected] = outpace.generate(target, "def add", method="autoregressive", **options)
    for _ in range(2):
        [found] = outpace.generate(target, "def add", method=method, head=str(tmp_path), **options)
        assert found.text == expected.text and found.statistics.num_spec_steps
    assert isinstance(target.heads.pop((method, str(tmp_path))), PositionModel)


@pytest.mark.slow
def test_a_compiled_prefix_layer_drafts_for_heads_in_half_precision(tiny, tmp_path: Path) -> None:
    """Compiled forwards give float32."""
    target = outpace.load(tiny.target, dtype="bfloat16", compile=True)
    save_head(untrained_hydra(target.target), tmp_path, target.target)
    [found] = outpace.generate(
        target, "def add", method="hydra", head=str(tmp_path), tree="chain", max_tokens=5, temperature=1.0
    )
    assert found.statistics.num_spec_steps


def test_heads_for_another_method_or_target_are_refused(loaded, tmp_path: Path) -> None:
    target, draft = loaded
    save_head(untrained_medusa(target.target), tmp_path, target.target)
    with pytest.raises(ValueError, match="holds a head of medusa: use it with .* or give a head of hydra$"):
        outpace.generate(target, "def", method="hydra", head=str(tmp_path))
    opened = PositionModel(untrained_medusa(target.target))
    with pytest.raises(ValueError, match="the head is a head for the method medusa, not for redrafter"):
        outpace.generate(target, "def", method="redrafter", head=opened)
    with pytest.raises(ValueError, match="opened for another target: give its folder"):
        outpace.generate(draft, "def", method="medusa", head=opened)
    with pytest.raises(ValueError, match="medusa needs head: a folder with a draft head"):
        outpace.generate(target, "def", method="medusa")
