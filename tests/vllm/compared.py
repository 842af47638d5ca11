"""The greedy text and the acceptance length in vLLM beside ours, for the tests of this folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import time
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import outpace
from outpace.api.model import Model
from outpace.models.names import resolve

PYTHON = os.environ.get("VLLM_PYTHON", "")
TARGET, MAX_TOKENS = "zoo:target", 48
TEXTS = (
    "def area(width, height):\n    return",
    "import os\n\n\ndef read(path):\n",
    "class Stack:\n    def __init__(self):\n",
    "for line in open(path):\n    if not line:\n",
    "What is 345 + 678?",
    "def main(argv):\n    parser = ",
)
needs_vllm = pytest.mark.skipif(not PYTHON, reason="needs VLLM_PYTHON: run make test-vllm")


@cache
def model() -> Model:
    return outpace.load(TARGET, dtype="float32")


@cache
def prompts() -> list[list[int]]:
    return [model().tokenizer(text)["input_ids"] for text in TEXTS]


@cache
def in_vllm(
    config: str,
    additional: str = "{}",
    max_tokens: int = MAX_TOKENS,
    engine: str = "{}",
    schedule: str = "null",
) -> dict[str, Any]:
    """What vLLM generates with this speculative_config, this additional_config and these further arguments
    (JSON). `schedule`: per prompt the step at which its request joins and the number of tokens after which it
    is aborted, or null."""
    asked = {
        "target": resolve(TARGET),
        "config": json.loads(config),
        "additional": json.loads(additional),
        "prompts": prompts(),
        "max_tokens": max_tokens,
        "engine": json.loads(engine),
        "schedule": json.loads(schedule),
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


def check(
    config: dict[str, Any],
    method: str,
    *,
    max_tokens: int = MAX_TOKENS,
    additional: Any = None,
    **options: Any,
) -> None:
    """Check that vLLM generates the same text with `config` as without it, and as outpace does with `method`
    and `options`, and that it accepts as many tokens in a step as outpace."""
    plain = in_vllm("null", max_tokens=max_tokens)
    found = in_vllm(json.dumps(config), json.dumps(additional or {}), max_tokens)
    assert found["tokens"] == plain["tokens"]
    ours = outpace.generate(
        model(), prompts(), method=method, max_tokens=max_tokens, temperature=0, stop=[], **options
    )
    assert [list(each.tokens) for each in ours] == plain["tokens"]
    steps = sum(each.statistics.num_spec_steps for each in ours)
    accepted = sum(each.statistics.num_accepted_draft_tokens for each in ours)
    assert found["accepted"] > 0
    lengths = [1 + found["accepted"] / found["drafts"], 1 + accepted / steps]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.05), lengths


def num_accepted(command: str, folder: Path) -> float:
    """The number of draft tokens that a server accepts, which is started by a command `vllm serve TARGET ...`
    of the documentation or of `outpace export` with our target. Its log is written to the folder."""
    _, _, _, *options = shlex.split(command.replace("\\\n", " "))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    arguments = ["--port", str(port), "--max-model-len", "512", "--enforce-eager", "--dtype", "float32"]
    with open(folder / "log", "w") as log:
        # vllm-cpu's own program `vllm` looks for the metadata of a package of that name, and fails
        module = ["-m", "vllm.entrypoints.openai.api_server", "--model", resolve(TARGET)]
        program = [PYTHON, *module, *options, *arguments]
        server = subprocess.Popen(program, env=os.environ | settings, stdout=log, stderr=log)
    try:
        for _ in range(600):
            time.sleep(0.5)
            assert server.poll() is None, (folder / "log").read_text()[-4000:]
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5)
                break
            except OSError:
                pass
        for text in TEXTS[:3]:
            body = {"model": resolve(TARGET), "prompt": text, "max_tokens": 64, "temperature": 0}
            request = urllib.request.Request(
                f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=120) as answer:
                assert json.load(answer)["choices"][0]["text"]
        metrics = urllib.request.urlopen(f"{url}/metrics", timeout=5).read().decode()
    finally:
        server.terminate()
        server.wait(timeout=60)
    [accepted] = re.findall(
        r"^vllm:spec_decode_num_accepted_tokens_total\{.*\} (\S+)$", metrics, re.MULTILINE
    )
    return float(accepted)
