"""The benchmark of the server, in short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from benchmarks import serving


@pytest.mark.programs
@pytest.mark.slow
def test_adaptive_drafts_are_compared_with_none(tmp_path: Path) -> None:
    file = tmp_path / "serving.json"
    serving.main(
        file,
        dtype="float32",
        compile_=False,
        threads=1,
        contenders="plain,adaptive,adaptive lookup",
        concurrency="2",
        max_tokens=16,
        seconds=1,
        rounds=3,
    )
    data = json.loads(file.read_text(encoding="utf-8"))
    assert data["complete"] and "turns" not in data
    assert {row["contender"]: row["failed"] for row in data["results"]} == dict.fromkeys(
        ("plain", "adaptive", "adaptive lookup"), 0
    )
    assert len(data["ratios"]) == 2
    for ratio in data["ratios"]:
        assert ratio["load"] == "2 streams" and ratio["ratios"]["output_tokens_per_second"]["low"] > 0


def test_a_contender_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="there is no contender quick: use plain"):
        serving.main(tmp_path / "serving.json", contenders="plain,quick")


def test_vllm_needs_folders(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="loads folders"):
        serving.main(tmp_path / "serving.json", vllm=Path("python"))


def test_a_server_of_vllm_that_does_not_start_is_reported(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    with (
        pytest.raises(RuntimeError, match="vLLM did not start: run env .*--model model --port 1"),
        serving.vllm_server(program, "model", 1, {}, "", 1),
    ):
        pass
