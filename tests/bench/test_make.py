"""`make bench-compiled`: what it asks for, run here on tiny models instead of the package's."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import results
from outpace.cli.bench import bench

ROOT = Path(__file__).resolve().parents[2]
WANTED = ROOT / "docs/results/compiled/wanted.json"
APP = typer.Typer(pretty_exceptions_enable=False)
APP.command()(bench)

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def planned(*settings: str) -> list[list[str]]:
    """The commands after the installation, without the variables before them."""
    command = ["make", "--dry-run", "--no-print-directory", "bench-compiled", *settings]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [
        shlex.split(line)
        for line in said.splitlines()
        if re.search(r"outpace (bench|\.bench)|bench\.results", line)
    ]
    return [[word for word in words if not re.match(r"[A-Z_]+=", word)] for words in found]


def test_engines_take_part_where_they_are_named() -> None:
    peers = "transformers,openvino=ov/bin/python,vllm=vllm/bin/python"
    for settings, wanted in (((), "transformers"), ((f"PEERS={peers}",), peers)):
        measure, _ = planned(*settings)
        assert measure[measure.index("--peer") + 1] == wanted


def test_the_page_of_compiled_models_comes_out(tiny: Any, tmp_path: Path) -> None:
    for workload in ("code", "edit"):
        (tmp_path / f"{workload}.txt").write_text("def push(self, item):\n", encoding="utf-8")
    measure, write = planned(f"OUT={tmp_path}", "NUM_PROMPTS=1", "ROUNDS=1", "TOKENS=4", "CPUS=1")
    prompts = f"{tmp_path / 'code.txt'},{tmp_path / 'edit.txt'}"
    small = {"zoo:target": tiny.target, "code,edit": prompts}
    assert small.keys() <= set(measure)
    arguments = [small.get(word, word) for word in measure[2:]]
    done = CliRunner().invoke(APP, [*arguments, "--draft", tiny.draft, "--dtype", "float32", "--ignore-eos"])
    assert done.exit_code == 0, done.output
    assert (
        results.main([str(ROOT / word) if word.endswith("wanted.json") else word for word in write[3:]]) == 0
    )
    page = (tmp_path / "bench-compiled" / "compiled.md").read_text()
    ours = [line for line in page.splitlines() if line.startswith("| ") and "wanted" not in line]
    missing = [line for line in ours if "not measured" in line]
    assert missing and all(
        "OpenVINO" in line for line in missing
    )  # every row that is wanted is there otherwise
    assert "How to read this" not in page


def test_what_is_wanted_compares_both_modes() -> None:
    row_params = json.loads(WANTED.read_text())["wanted"]
    over = [params for params in row_params if params.get("over") == {"method": "plain (eager)"}]
    assert {(params["select"]["temperature"], params["at_least"]) for params in over} == {(0, 1.5), (1, 1.5)}
    asked = {params["select"]["method"] for params in row_params if params["value"] == "efficiency"}
    names = ("speculative-sampling", "mcsd", "prompt-lookup")
    assert asked == {*names, *(f"{name} (eager)" for name in names)}
