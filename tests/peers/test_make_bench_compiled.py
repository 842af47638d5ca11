"""`make bench-compiled`: its commands, run here on tiny models instead of those in the package."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.peers.__main__ import app

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def planned(*settings: str) -> list[list[str]]:
    """The arguments of each measurement that `make bench-compiled` would run with these variables."""
    command = ["make", "--dry-run", "--no-print-directory", "bench-compiled", *settings]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [shlex.split(line) for line in output.splitlines() if "benchmarks.peers" in line]
    return [[word for word in words if not re.match(r"[A-Z_]+=", word)] for words in found]


def test_engines_take_part_where_they_are_named() -> None:
    peers = "transformers,openvino=ov/bin/python,vllm=vllm/bin/python"
    for settings, wanted in (((), "transformers"), ((f"PEERS={peers}",), peers)):
        (measure,) = planned(*settings)
        assert measure[measure.index("--peer") + 1] == wanted


@pytest.mark.slow
def test_compiled_models_are_measured_and_reported(tiny: Any, tmp_path: Path) -> None:
    for workload in ("code", "edit"):
        (tmp_path / f"{workload}.txt").write_text("def push(self, item):\n", encoding="utf-8")
    (measure,) = planned(f"OUT={tmp_path}", "NUM_PROMPTS=1", "ROUNDS=1", "TOKENS=4", "CPUS=1")
    prompts = f"{tmp_path / 'code.txt'},{tmp_path / 'edit.txt'}"
    small = {"zoo:target": tiny.target, "code,edit": prompts}
    assert small.keys() <= set(measure)
    arguments = [small.get(word, word) for word in measure[measure.index("benchmarks.peers") + 1 :]]
    done = CliRunner().invoke(app, [*arguments, "--draft", tiny.draft, "--dtype", "float32", "--ignore-eos"])
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "bench-compiled").iterdir()} == {
        "bench.json",
        "bench.md",
        "bench.html",
    }
    page = json.loads((ROOT / "docs/results/compiled/page.json").read_text())
    measured = {
        run["method"] for run in json.loads((tmp_path / "bench-compiled/bench.json").read_text())["runs"]
    }
    wanted = {target["method"] for target in page["targets"]}
    assert wanted <= measured
