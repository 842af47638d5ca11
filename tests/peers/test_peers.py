"""`benchmarks.peers` with a stub engine: rows, reasons of failures, precision, conversion, missing
packages."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from benchmarks.peers import environments as peer_kinds
from benchmarks.peers.__main__ import app, find_peers
from benchmarks.peers.converted_models import key
from benchmarks.peers.environments import PEER_ENGINES, PeerEnvironment, find_environment, parse_peers
from benchmarks.peers.openvino_models import converted
from benchmarks.peers.worker import Worker

STUB = Path(__file__).parent / "stub_engine.py"
# compiled and eager; with depths 2, 3 and 5; with lengths (3, 2), (5, 3) and (10, 3)
PLAIN, DRAFT, LOOKUP = (
    f"vllm {name}, best of {number} settings"
    for name, number in (("plain", 2), ("draft_model", 6), ("ngram", 6))
)
NUM_PROCESSES = 2 + 6 + 6
METHODS = "speculative-sampling:depth=2,prompt-lookup:depth=3:max_ngram=2"


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A stub for vLLM, and the processes that were started for it."""
    stub = replace(PEER_ENGINES["vllm"], module="json", packages=("pytest",), script=STUB)
    monkeypatch.setitem(peer_kinds.PEER_ENGINES, "vllm", stub)
    ready, seen = Worker.ready, list[int]()

    def noted(self: Worker) -> Mapping[str, Any]:
        seen.append(self.process.pid)
        return ready(self)

    monkeypatch.setattr(Worker, "ready", noted)
    return seen


def call(tiny: Any, tmp_path: Path, *arguments: str) -> Result:
    prompts = tmp_path / "some.txt"
    prompts.write_text("def push(self, item):\nclass Queue:\n", encoding="utf-8")
    options = [
        "--target",
        tiny.target,
        "--draft",
        tiny.draft,
        "--prompts",
        str(prompts),
        "--dtype",
        "float64",
    ]
    options += ["--max-tokens", "8", "--rounds", "1", "--threads", "1", "--device", "cpu", "--ignore-eos"]
    return CliRunner().invoke(
        app, [*options, "--methods", METHODS, "--peer", "vllm", *arguments], obj=find_peers
    )


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
def test_peers_run_at_the_best_of_their_settings_and_report_their_precision(
    tiny: Any, tmp_path: Path, pids: list[int]
) -> None:
    done = call(tiny, tmp_path, "--temperature", "0,1", "--output", str(tmp_path))
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "bench.json").read_text())
    peers = {
        row["method"]: row for row in data["results"] if row["kind"] == "peer" and row["temperature"] == 0
    }
    assert list(peers) == [PLAIN, DRAFT, LOOKUP]
    assert set(data["peer_settings"][LOOKUP]["tokens_per_second"]["0"]) == {
        f"depth={depth},max_ngram={max_ngram},{how}"
        for depth, max_ngram in ((3, 2), (5, 3), (10, 3))
        for how in ("eager", "compiled")
    }
    assert peers[LOOKUP]["options"] == {
        "setting at temperature 0": data["peer_settings"][LOOKUP]["chosen"]["0"]
    }
    assert {row["precision"] for row in peers.values()} == {"float64 in threes"}
    assert next(row for row in data["results"] if row["method"] == "plain")["precision"] == "f64"
    assert {"vllm plain:eager", "vllm draft_model:depth=2,compiled"} <= set(data["load_seconds"])
    assert data["provenance"]["versions"]["pytest"] == pytest.__version__
    assert "| precision |" in (tmp_path / "bench.md").read_text() and "float64 in threes" in done.output
    # what it cannot do at one temperature it still does at the other, and no row pools the two
    why = f"{LOOKUP} at temperature 1 was left out: it only looks up greedily"
    assert why in done.output and why in (tmp_path / "bench.md").read_text()
    met = [
        row["temperature"] for row in data["results"] if row["method"] == LOOKUP and row["selection"] == "all"
    ]
    assert met == [0.0] and data["complete"]
    assert len(pids) == NUM_PROCESSES and gone(pids)


@pytest.mark.slow
def test_those_that_die_or_do_not_start_are_left_out(
    tiny: Any, tmp_path: Path, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_FAILS", "prompt-lookup")
    monkeypatch.setenv("STUB_LASTS", "5")  # three in the search, warm-up and one timed run
    done = call(tiny, tmp_path, "--temperature", "0", "--output", str(tmp_path / "x.json"))
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "x.json").read_text())
    assert data["failed"] == {
        LOOKUP: "ValueError: these weights are for another engine",
        DRAFT: "its process ended with exit code 3: a wheel came off",
    }
    assert data["complete"] and {run["method"] for run in data["runs"]} >= {PLAIN, DRAFT}
    assert {row["method"] for row in data["results"] if row["kind"] == "peer"} == {PLAIN}
    assert f"{DRAFT} was left out: its process ended" in done.output
    assert gone(pids)


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_made_and_ends_the_workers(
    tiny: Any, tmp_path: Path, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    send, calls = Worker.request, list[int]()

    def interrupted(self: Worker, request: Mapping[str, Any]) -> Mapping[str, Any]:
        calls.append(1)
        if len(calls) == 3 * 14 + 5:
            raise KeyboardInterrupt
        return send(self, request)

    monkeypatch.setattr(Worker, "request", interrupted)
    done = call(tiny, tmp_path, "--temperature", "0", "--output", str(tmp_path / "x.json"))
    assert done.exit_code == 1 and "interrupted after" in done.output.splitlines()[-1]
    assert not json.loads((tmp_path / "x.json").read_text())["complete"]
    assert len(pids) == NUM_PROCESSES and gone(pids)


def test_a_missing_package_gives_one_sentence_with_the_install_command(tiny: Any, tmp_path: Path) -> None:
    done = call(tiny, tmp_path, "--peer", "openvino")
    assert done.exit_code == 2
    line = done.output.splitlines()[-1]
    assert (
        "openvino_genai is not installed" in line and "pip install openvino-genai optimum-intel nncf" in line
    )
    assert "--peer openvino=openvino/bin/python" in line and "loading" not in done.output


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("someone", "there is no peer 'someone'"),
        ("transformers=/bin/python", "there is no peer 'transformers'"),
        ("vllm=", "names no interpreter"),
        ("", "there is no peer ''"),
    ],
)
def test_a_peer_that_cannot_be_meant(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_peers([text])


def test_peers_and_their_interpreters() -> None:
    assert parse_peers(["openvino=~/ov/bin/python", "vllm"]) == {
        "openvino": "~/ov/bin/python",
        "vllm": None,
    }
    engine = replace(PEER_ENGINES["vllm"], module="json", packages=("pytest", "nothing-like-it"))
    assert find_environment(engine, sys.executable).versions == {"pytest": pytest.__version__}
    assert find_environment(engine, None).own
    with pytest.raises(ValueError, match="no such Python"):
        find_environment(engine, "/nowhere/python")
    with pytest.raises(ValueError, match="is not a working Python interpreter"):
        find_environment(engine, "/bin/false")


def test_peers_of_their_own_environment_are_measured_on_a_cpu(
    tiny: Any, tmp_path: Path, pids: list[int]
) -> None:
    done = call(tiny, tmp_path, "--device", "cuda")
    assert done.exit_code == 2 and "--peer vllm is measured on a CPU" in done.output.splitlines()[-1]


CONVERTER = """#!/bin/sh
for last; do :; done
case "$*" in *broken*) echo oh no >&2; exit 1;; esac
mkdir -p "$last" && echo x > "$last/openvino_model.xml" && echo "$*" > "$last/arguments"
"""


def test_a_model_is_converted_once_for_its_content_and_versions(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(CONVERTER)
    python.chmod(0o755)
    models = [tmp_path / "model", tmp_path / "broken"]
    for model in models:
        model.mkdir()
        (model / "config.json").write_text("{}")
    peer = PeerEnvironment(PEER_ENGINES["openvino"], str(python), {"openvino": "1"})
    messages, environment = list[str](), os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    first, seconds = converted(peer, str(models[0]), "bfloat16", None, environment, messages.append)
    assert (
        first.parent == tmp_path / "cache" / "outpace" / "openvino"
        and (first / "openvino_model.xml").is_file()
    )
    assert seconds > 0 and len(messages) == 1 and "converting" in messages[0]
    assert converted(peer, str(models[0]), "bfloat16", None, environment, messages.append) == (first, 0.0)
    four, _ = converted(peer, str(models[0]), "bfloat16", "int4", environment, messages.append)
    assert four != first and "--weight-format int4 --sym" in (four / "arguments").read_text()
    assert len({key(models[0], "fp16", {"a": version}) for version in "12"}) == 2
    (models[0] / "config.json").write_text("{ }")
    assert converted(peer, str(models[0]), "bfloat16", None, environment, messages.append)[0] != first
    with pytest.raises(ValueError, match="could not be converted: oh no"):
        converted(peer, str(models[1]), "bfloat16", None, environment, messages.append)
    assert not [path for path in first.parent.iterdir() if path.name.startswith(".")]
